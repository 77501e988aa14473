"""All outgoing HTTP: requests through the egress guard, by httpx over pools of httpcore.

`client.py` follows redirects and bounds time. `transport.py` is the guard as an httpx transport, with a pool of
connections for each set of opened networks. `backend.py` resolves once, checks every answer, connects to a checked
address, and keeps each response separate from the next. `wire.py` reads answers within limits.
"""
