"""What an MCP server may send: each road from its bytes to a message, bounded in all that costs time or memory.

`connections.py` bounds the framing of HTTP, `events.py` event streams, `inbox.py` messages for which no call waits,
`repairs.py` mends JSON that strict parsers refuse; lines of pipes are in `../lines.py` and `../stdio.py`.
"""
