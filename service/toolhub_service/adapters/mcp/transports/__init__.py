"""The transports to MCP servers: how bytes of a server become messages, bounded in all that costs time or memory.

`connections.py` bounds the framing of HTTP, `events.py` event streams, `inbox.py` messages for which no call waits,
`repairs.py` mends JSON that strict parsers refuse. `stdio.py` runs a server as a program, `lines.py` and `pump.py` take
the lines that it prints.
"""
