"""Stores in the hub's own SQLite files, shared by the processes of one machine."""
