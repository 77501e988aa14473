"""Approvals: questions to people, each bound to exactly one call."""
