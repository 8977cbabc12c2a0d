"""Sweeps: several runs from one command."""
