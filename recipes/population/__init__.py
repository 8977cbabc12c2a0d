"""Populations: the runs of a sweep, trained together in one process."""
