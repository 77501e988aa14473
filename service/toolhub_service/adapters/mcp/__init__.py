"""Tools of servers that speak the Model Context Protocol.

`kind.py` says what a server is, `link.py` keeps a connection to it (`connection.py` is one of them, `stdio.py` and
`http.py` carry it), the adapter and the source stand on `link.py`. Nothing outside imports the SDK.
"""
