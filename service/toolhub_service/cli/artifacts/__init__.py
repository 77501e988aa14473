"""`toolhub artifacts`: stored files."""
