"""The one way out: requests to the world through the egress guard, by httpx over pools of httpcore.

`client.py` follows redirects and bounds time. `transport.py` is the guard in the form of an httpx transport, with a
pool of connections for each set of opened networks. `backend.py` resolves once, judges every answer, connects to an
address that it judged, and lets no response reach into the next one. `wire.py` reads answers within bounds.
"""
