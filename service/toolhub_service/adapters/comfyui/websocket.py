"""A WebSocket to one server, to an address that was judged; no proxy, no redirect, no compression, bounded messages.

The package `websockets` is an extra: without it there are no events, and jobs are followed by asking alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from toolhub_service import __version__
from toolhub_service.adapters.comfyui.terms import ALL_NETWORKS, BackendTerms
from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.addresses import is_allowed
from toolhub_service.guards.urls import parse_url

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""States of all nodes so far come with every step: about 250 bytes each."""
_ANSWERS_MAX: Final = 4
_PING_S: Final = 30.0
_PONG_S: Final = 60.0
"""A server that has just ended a run is silent for seconds."""
_CLOSE_S: Final = 2.0


class NotDialled(Exception):
    """There is no connection; `reason` is a clause for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Dialler:
    """Opens WebSockets to one server."""

    def __init__(
        self, terms: BackendTerms, resolver: Resolver, *, tls: ssl.SSLContext | None, connect_timeout_s: float
    ) -> None:
        self._terms = terms
        self._resolver = resolver
        self._tls = tls
        self._timeout_s = connect_timeout_s

    async def dial(self, client_id: str) -> ClientConnection:
        """A connection under this id. Raises NotDialled."""
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import WebSocketException

            from toolhub_service.adapters.comfyui.cut_connection import CutConnection
        except ModuleNotFoundError:
            raise NotDialled("the package `websockets` is not installed: pip install 'tool-hub[comfyui]'") from None
        place = parse_url(self._terms.url)
        scheme = "wss" if place.scheme == "https" else "ws"
        base = "" if place.target == "/" else place.target
        try:
            async with asyncio.timeout(self._timeout_s):
                sock = await self._connected(place.host, place.port)
            with _cut_when_it_fails(sock):
                return await connect(
                    f"{scheme}://{place.authority}{base}/ws?clientId={client_id}",
                    create_connection=CutConnection,
                    sock=sock,
                    ssl=(self._tls or True) if scheme == "wss" else None,
                    proxy=None,
                    compression=None,
                    additional_headers=dict(self._terms.headers),
                    user_agent_header=f"tool-hub/{__version__}",
                    open_timeout=self._timeout_s,
                    ping_interval=_PING_S,
                    ping_timeout=_PONG_S,
                    close_timeout=_CLOSE_S,
                    max_size=MESSAGE_MAX_BYTES,
                )
        except TimeoutError:
            raise NotDialled("no WebSocket was opened in time") from None
        except (OSError, ValueError, WebSocketException) as error:
            raise NotDialled("its WebSocket was refused or broke") from error

    async def _connected(self, host: str, port: int) -> socket.socket:
        """Raises OSError, NotDialled."""
        answers = await self._resolver.resolve(host, port)
        if not answers or not all(is_allowed(answer, ALL_NETWORKS) for answer in answers):
            raise NotDialled("its host leads to an address that may not be reached")
        return await _first_to_answer(answers[:_ANSWERS_MAX], port)


@contextmanager
def _cut_when_it_fails(sock: socket.socket) -> Iterator[None]:
    """Whoever holds the socket by then sees its end, and closes it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        raise


async def _first_to_answer(addresses: Sequence[str], port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for address in addresses:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, (address, port))
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed or OSError("no address")
