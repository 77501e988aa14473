"""The nine steps of a call: 1 in route.py, 2 to 7 in steps.py, 8 in attach_evidence.py, 9 in record.py."""
