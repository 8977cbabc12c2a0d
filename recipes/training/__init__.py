"""What the recipes share: everything but the algorithm."""
