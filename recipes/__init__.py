"""Recipes: vMFER in TD3 and SAC, and the programs that evaluate and report their runs."""
