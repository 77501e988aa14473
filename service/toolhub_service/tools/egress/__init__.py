"""The one way out: requests to the world through the egress guard, on pooled connections.

`client.py` follows redirects and bounds time, `pool.py` keeps idle connections, `connection.py` speaks HTTP/1.1 (h11),
`dialer.py` resolves once, judges every answer and connects to the address that it judged, `stream.py` is the socket.
"""
