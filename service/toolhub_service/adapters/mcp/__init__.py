"""Tools of servers that speak the Model Context Protocol.

`kind.py` declares what a server is and `link.py` keeps a connection to it (`connection.py` is one connection, carried
by `transports/stdio.py` or `transports/http.py`); the adapter and the source use `link.py`. Only this package imports
the SDK.
"""
