"""Budget: deadline, rate, concurrency, quota, breaker and retry; taken in step 5, given back after the call. No I/O.

turns.py is no part of that step: it says whose call begins next on the event loop.
"""
