"""Forks: several methods continue from the same checkpoint, with common random numbers.

The modules follow the data flow: sources (checkpoints of runs) and arms (methods) make a plan; each
fork of the plan starts from a state that all arms share and is either live (full training) or
frozen (only the actor is updated); the results become tables, figures and a report.
"""
