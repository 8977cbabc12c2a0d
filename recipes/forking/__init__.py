"""Forks: several methods continue from the same checkpoint, with common random numbers.

The listing follows the data: sources (checkpoints of runs) and arms (methods) make a plan; a fork
of the plan starts from a state that all arms share and is either live (full training) or frozen
(only the actor is updated); the results become tables, pictures and a report.
"""
