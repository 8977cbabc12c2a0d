"""Data collection: in this process, in others, and with Ray."""
