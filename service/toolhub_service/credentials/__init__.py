"""Callers' own credentials of sources: sealed, given out to one call of their owner at a time, and renewed.

Read `vault.py` first. The credential that a caller shows to the hub itself is no part of this package: it goes to no
source.
"""
