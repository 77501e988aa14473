"""Budget: deadline, rate, concurrency, quota, breaker and retry; taken in step 5, given back after the call. No I/O."""
