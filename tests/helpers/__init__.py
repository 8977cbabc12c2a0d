"""What several test files share: small buffers, references and assertions."""
