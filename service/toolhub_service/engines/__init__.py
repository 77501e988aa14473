"""Engines: who runs a job, and where. The store is authoritative for jobs; an engine only delivers them, at least once.

An optional engine is imported only when it is chosen, because its libraries are installed only where it is used.
"""
