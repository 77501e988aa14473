"""Stores in PostgreSQL, shared by all hubs of one schema."""
