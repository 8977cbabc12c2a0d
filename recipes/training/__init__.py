"""Code shared by the recipes: everything except the algorithms."""
