"""Compatibility with older tool sets: a face maps their names, arguments and answers onto the hub's own tools.

permissions.py and openclaw.py translate their permission files into a policy.
"""
