"""Gymnasium environments, and how their state is saved."""
