"""Databases by configured names: PostgreSQL and SQLite for core/db.*, and results as files."""
