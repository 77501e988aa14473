"""Engines: who runs a job, and where. The store is the truth about jobs; an engine only delivers them, at least once.

An optional one is imported where it is chosen, for its libraries are installed where it is used.
"""
