"""The port of the MCP endpoint: bound when the hub starts, served from the first connection on.

The SDK takes a second and tens of megabytes to load. A hub without MCP clients pays for neither; the first client waits
in the socket's queue meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Final, Protocol

_BACKLOG: Final = 1_024
_SERVING: Final = "toolhub_service.mcp_server.http.serving"


class Served(Protocol):
    """The server on the socket."""

    async def close(self, grace_s: float) -> None: ...

    def open_now(self) -> tuple[int, int]: ...


Serve = Callable[[Any, socket.socket], Awaitable[Served]]
"""(the module that serves, which is loaded by now; the socket) -> what answers on it."""


NOT_INSTALLED: Final = "not served: toolhub extras install mcp"


def is_installed() -> bool:
    """Return whether the extra `mcp` is installed."""
    return all(find_spec(name) is not None for name in ("mcp", "starlette"))


class Listener:
    """Call `bind`, `start`, `close`. Does nothing without a socket."""

    def __init__(self, serve: Serve, failed: Callable[[Exception], None]) -> None:
        """`failed` is called when the endpoint cannot be served after all."""
        self._serve = serve
        self._failed = failed
        self._socket: socket.socket | None = None
        self._opening: asyncio.Task[Served | None] | None = None
        self.port = 0
        """0: not bound."""

    def bind(self, host: str, port: int, *, share_port: bool) -> None:
        """Bind the socket. Raises OSError when the address is not available."""
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        # Passed explicitly, because asyncio sets TCP_NODELAY only on sockets known to be TCP.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share_port:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
        self.port = int(bound.getsockname()[1])
        self._socket = bound

    def start(self) -> None:
        if self._socket is not None:
            # Clients can connect from here on, though nothing reads yet: their data waits in the kernel.
            self._socket.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._first)

    def open_now(self) -> tuple[int, int]:
        """(sessions of the older protocol, streams that only listen) in this process."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled():
            return 0, 0
        served = opening.result()
        return (0, 0) if served is None else served.open_now()

    async def close(self, grace_s: float) -> None:
        """Accept no more, and let requests end for `grace_s`."""
        bound = self._socket
        self._socket = None
        if bound is None:
            return
        asyncio.get_running_loop().remove_reader(bound.fileno())
        try:
            served = await self._opening if self._opening is not None else None
            if served is not None:
                await served.close(grace_s)
        finally:
            bound.close()

    def _first(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._opening = asyncio.create_task(self._open(self._socket), name="the MCP endpoint")

    async def _open(self, bound: socket.socket) -> Served | None:
        try:
            serving = await asyncio.to_thread(importlib.import_module, _SERVING)
            return await self._serve(serving, bound)
        except Exception as error:  # noqa: BLE001 - gRPC is served all the same, and the log tells why MCP is not
            bound.close()
            self._failed(error)
            return None
