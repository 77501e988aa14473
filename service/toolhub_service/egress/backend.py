"""Connections: resolve once, check every answer, connect to a checked address (no second lookup, hence no rebinding),
and pass on one response at a time.

If one address of a name is not allowed, the whole name is refused: an attacker who controls the zone could otherwise
wait until the resolver's order favours the forbidden one. Addresses are tried in turn, each with its share of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

import httpcore

from toolhub_service.domain.ports import Resolver
from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.closings import Closings
from toolhub_service.egress.message_stream import MessageStream
from toolhub_service.guards.addresses import Networks, is_allowed
from toolhub_service.guards.urls import refuse_address

_ANSWERS_MAX = 8


async def resolve_checked(resolver: Resolver, host: str, port: int, networks: Networks) -> Sequence[str]:
    """Return the allowed addresses of a host, for connecting without another lookup.

    Raises ToolFailure HTTP_DISALLOWED_HOST when any of them is not allowed; WireError when there is none.
    """
    answers = (host,) if _is_literal(host) else await resolve_host(resolver, host, port)
    if not all(is_allowed(answer, networks) for answer in answers):
        raise refuse_address(host)
    return answers[:_ANSWERS_MAX]


async def resolve_host(resolver: Resolver, host: str, port: int) -> Sequence[str]:
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
                addresses = await resolve_checked(self._resolver, host, port, self._networks)
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
        raise refuse_address("A local socket")

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
