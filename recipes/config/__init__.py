"""Configuration: keys, command lines and their errors."""
