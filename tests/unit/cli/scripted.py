"""A connection of the command line to a server that plays a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from toolhub_service.cli.connection.channel import Endpoint
from toolhub_service.cli.connection.client import Connection, connect


@contextmanager
def connection_to(add_servicers: Callable[[grpc.Server], None]) -> Iterator[Connection]:
    server = grpc.server(ThreadPoolExecutor(4))
    add_servicers(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connect(Endpoint(f"127.0.0.1:{port}"), None, 20.0) as connection:
            yield connection
    finally:
        server.stop(None)
