"""Callers' own credentials of sources: sealed, given to one call of their owner at a time, and renewed.

Read `vault.py` first. The credential that a caller presents to the hub itself does not belong to this package: it goes
to no source.
"""
