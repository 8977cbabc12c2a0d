"""Forks: several methods continue from the same checkpoint, with common random numbers.

The modules follow the data flow: sources (checkpoints of runs) and arms (methods) make a plan; each
fork of the plan has a start that all arms share; running them gives results, which become a report.
"""
