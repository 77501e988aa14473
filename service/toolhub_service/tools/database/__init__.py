"""Databases by configured names: PostgreSQL and SQLite as core/db.* use them, and results as files."""
