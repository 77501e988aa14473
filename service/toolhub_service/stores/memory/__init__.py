"""Stores in the memory of one process: lost with it, and seen by no other."""
