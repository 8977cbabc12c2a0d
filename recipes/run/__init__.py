"""A training run: its loop, its files and its evaluation."""
