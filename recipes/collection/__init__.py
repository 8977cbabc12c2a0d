"""Data collection: workers step environments, in this process or others, and send transitions."""
