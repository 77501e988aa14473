"""The hub as an MCP server: another entrance to the same pipeline, over HTTP and stdio.

`http/admission.py` is in front of the endpoint (who is admitted, how much, for how long) and knows nothing of MCP;
`http/exchange.py` answers plain requests of 2026-07-28 without the HTTP transport of the SDK; `http/listener.py` holds
the port, and loads the SDK when the first client connects; `endpoint.py` answers the protocol's requests.
"""
