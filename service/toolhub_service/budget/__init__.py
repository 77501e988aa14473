"""What one call may use: deadline, rate, concurrency, quota, breaker and retry. No I/O.

ledger.py takes all of it in step 5, lease.py returns it after the call.
"""
