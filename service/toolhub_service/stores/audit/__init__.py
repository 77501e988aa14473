"""The audit log: append-only chained events, signed checkpoints, their verification; in SQLite or PostgreSQL."""
