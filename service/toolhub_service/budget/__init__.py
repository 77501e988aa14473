"""Budget: deadline, rate, concurrency, quota, breaker and retry; taken in step 5, returned after the call. No I/O.

turns.py does not belong to that step: it decides whose call begins next on the event loop.
"""
