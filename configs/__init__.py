"""The configuration files of the recipes."""
