"""Artifacts: large values by reference, owned, counted and expiring."""
