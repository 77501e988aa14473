"""Stores in Redis, shared by all hubs with one prefix."""
