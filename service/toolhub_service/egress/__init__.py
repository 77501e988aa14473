"""Outgoing HTTP under egress rules: requests through the egress guard, by httpx over pools of httpcore.

`client.py` follows redirects and bounds time. `transport.py` is the guard as an httpx transport; `pools.py` has a pool
of connections for each set of opened networks. `backend.py` resolves once, checks every answer and connects to a
checked address. `message_stream.py` keeps each response separate from the next, `framing.py` and `bodies.py` bound what
is read, `breakage.py` names what can go wrong.

Not through this guard: MCP servers (`adapters/mcp/transports`, only to the source's own origins), the WebSocket of
ComfyUI, buckets (`stores/blobs/bucket.py`) and collectors of telemetry.
"""
