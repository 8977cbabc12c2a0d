"""The components of an agent: networks, replay, batches and diagnostics."""
