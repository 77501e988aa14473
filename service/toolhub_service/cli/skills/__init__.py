"""`toolhub skills`: folders with a SKILL.md."""
