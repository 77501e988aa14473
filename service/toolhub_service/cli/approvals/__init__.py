"""`toolhub approvals`: pending questions, and decisions about them."""
