"""Errors: their values, their tables, and what HTTP statuses of other servers mean."""
