"""The nine steps of a call. Read pipeline.py first: it runs them in order.

Step 1 is in route.py, 2 to 7 in steps.py, 8 in attach_evidence.py, 9 in record.py.
"""
