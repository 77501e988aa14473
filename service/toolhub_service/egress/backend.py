"""Connections: resolve once, check every answer, connect to a checked address (no second lookup, hence no rebinding),
and pass on one response at a time.

If one address of a name is not allowed, the whole name is refused: an attacker who controls the zone could otherwise
wait until the resolver's order favours the forbidden one. Addresses are tried in turn, each with its share of the time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Iterable, Sequence
from ipaddress import ip_address
from typing import Any

import httpcore

from toolhub_service.aio.cooperative import pass_turnstile
from toolhub_service.domain.ports import Resolver
from toolhub_service.egress.framing import HttpFraming
from toolhub_service.egress.wire import WIRE_ERRORS, Breakage, WireError, wire_error
from toolhub_service.guards.addresses import Networks, is_allowed
from toolhub_service.guards.urls import address_refused

# Running closings: each runs to its end, even when the call that began it is cancelled.


class Closings:
    """Closes connections in tasks, so that a cancelled call, which does not wait for them, leaves none half closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run the closing in its own task."""
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Wait for the running closings."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


# A connection that passes one response at a time to the HTTP parser, never a byte beyond it (`framing.py`).
#
# What follows a complete response stays outside of httpcore and marks the connection as readable, upon which httpcore
# drops it. A peer that ends early is distinguished here from an answer that is not HTTP.

_RECEIVE_MAX_BYTES = 256 * 1024  # as much as asyncio reads at once, so that nothing waits unseen below


class MessageStream(httpcore.AsyncNetworkStream):
    """The socket of one connection. Between a request's first byte and `body_follows` it reads a head."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, address: str, closings: Closings) -> None:
        self.address = address
        """The literal address of the connection."""
        self._inner = inner
        self._closings = closings
        self._is_tls = False
        self._framing = HttpFraming()
        self._is_waiting = True
        self._is_spent = False

    def body_follows(self, method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that the last head was the final one, and how its body is framed."""
        self._framing.body_follows(method, status, headers)

    def stop_waiting(self) -> None:
        """Until the next request, read only data that has arrived; more data makes the connection unusable."""
        self._is_waiting = False

    async def check_for_excess(self) -> None:
        """After a response, mark the connection as unusable if TLS holds more data, which the socket does not show."""
        # Without TLS httpcore detects further data at the socket itself.
        if not self._is_tls or self._framing.has_bytes:
            return
        try:
            await self._inner.read(1, timeout=0)
        except httpcore.ReadTimeout:
            return
        # A connection that breaks here is unusable, as one with excess bytes is.
        except (httpcore.ReadError, OSError):
            pass
        self._is_spent = True

    # httpcore.AsyncNetworkStream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  httpcore's signature
        """Return the next bytes of the current response. Raises WireError."""
        framing = self._framing
        if not framing.has_bytes:
            arrived = await self._receive(timeout)
            if not arrived:
                if framing.ends_with_connection:
                    return b""
                raise self._broken()
            framing.feed(arrived)
        if framing.costs_a_turn:
            await pass_turnstile()
        return framing.next_piece(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  likewise
        if not buffer:
            return
        self._is_waiting = True
        self._framing.begin()
        try:
            await self._inner.write(buffer, timeout)
        except OSError as error:
            raise httpcore.WriteError from error

    async def aclose(self) -> None:
        """Begin to close; never suspends, so that a cancelled call cannot stop while it closes several."""
        self._is_spent = True
        self._closings.begin(self._inner.aclose())

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  likewise
    ) -> MessageStream:
        try:
            inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except httpcore.ConnectError as error:
            is_refused = isinstance(error.__cause__, ssl.SSLError)
            raise WireError(Breakage.UNTRUSTED if is_refused else Breakage.UNREACHABLE) from None
        except BaseException:  # httpcore closes it after an error, but not after a cancellation
            await self.aclose()
            raise
        secured = MessageStream(inner, self.address, self._closings)
        secured._is_tls = True
        return secured

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and (self._framing.has_bytes or self._is_spent):
            return True
        return self._inner.get_extra_info(info)

    async def _receive(self, timeout_s: float | None) -> bytes:
        try:
            return await self._inner.read(_RECEIVE_MAX_BYTES, timeout_s if self._is_waiting else 0)
        except WIRE_ERRORS as error:
            broken = wire_error(error)
            raise broken if broken.breakage is Breakage.SILENT and self._is_waiting else self._broken() from None
        except OSError:
            raise self._broken() from None

    def _broken(self) -> WireError:
        return WireError(Breakage.BROKEN, on_kept=self._framing.is_in_head and self._framing.answers > 0)


_ANSWERS_MAX = 8


async def checked_addresses(resolver: Resolver, host: str, port: int, networks: Networks) -> Sequence[str]:
    """Return the allowed addresses of a host, for connecting without another lookup.

    Raises ToolFailure HTTP_DISALLOWED_HOST when any of them is not allowed; WireError when there is none.
    """
    answers = (host,) if _is_literal(host) else await _resolved(resolver, host, port)
    if not all(is_allowed(answer, networks) for answer in answers):
        raise address_refused(host)
    return answers[:_ANSWERS_MAX]


async def _resolved(resolver: Resolver, host: str, port: int) -> Sequence[str]:
    try:
        answers = await resolver.resolve(host, port)
    except TimeoutError:
        raise
    except OSError:
        answers = ()
    if not answers:
        raise WireError(Breakage.UNRESOLVED)
    return answers


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Network backend of one pool: connects to allowed addresses only."""

    def __init__(
        self,
        resolver: Resolver,
        networks: Networks,
        closings: Closings,
        network: httpcore.AsyncNetworkBackend,
    ) -> None:
        """`networks`: what may be reached. `network` connects to literal addresses."""
        self._resolver = resolver
        self._networks = networks
        self._closings = closings
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> MessageStream:
        """Return a connection to a name or address.

        Raises: ToolFailure: HTTP_DISALLOWED_HOST when any address of the host is not allowed. WireError: when the host
        does not resolve or cannot be reached within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await checked_addresses(self._resolver, host, port, self._networks)
                return await self._first_to_answer(addresses, port, timeout)
        except TimeoutError:
            raise WireError(Breakage.CONNECT_TIMEOUT) from None

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> MessageStream:
        """Always refused, because a local socket is no host."""
        raise address_refused("A local socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _first_to_answer(self, addresses: Sequence[str], port: int, timeout_s: float | None) -> MessageStream:
        for position, address in enumerate(addresses):
            left = len(addresses) - position
            share_s = timeout_s / (left + 1) if timeout_s is not None and left > 1 else None
            try:
                stream = await self._network.connect_tcp(address, port, timeout=share_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue  # the next address may answer, such as IPv4 where IPv6 is unreachable
            return MessageStream(stream, address, self._closings)
        raise WireError(Breakage.UNREACHABLE)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
