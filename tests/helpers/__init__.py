"""Small buffers, references and assertions that several test files share."""
