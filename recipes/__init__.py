"""Recipes: vMFER in several algorithms, and the programs that evaluate and report their runs."""
