"""Datasets, and scores of offline learning."""
