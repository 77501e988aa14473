"""Resolve once, judge every answer, connect to an address that was judged (no second lookup, hence no rebinding).

If one answer of a name is not allowed the name is refused as a whole: an attacker who controls the zone could otherwise
wait until the resolver's order favours the forbidden one. Answers are tried in turn, each with its share of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

import httpcore

from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.addresses import is_allowed
from toolhub_service.guards.urls import address_refused
from toolhub_service.tools.egress.breakage import Breakage, WireError
from toolhub_service.tools.egress.closings import Closings
from toolhub_service.tools.egress.message_stream import MessageStream

_ANSWERS_MAX = 8


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """How one pool reaches the network: connections to allowed addresses, and to nothing else."""

    def __init__(
        self,
        resolver: Resolver,
        opened: tuple[str, ...],
        closings: Closings,
        network: httpcore.AsyncNetworkBackend,
    ) -> None:
        """`opened`: networks that may be reached besides the public ones. `network` connects to literal addresses."""
        self._resolver = resolver
        self._opened = opened
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
        """A connection to a name or address.

        Raises:
            ToolFailure: HTTP_DISALLOWED_HOST when any address of the host is not allowed.
            WireError: when the host does not resolve or cannot be reached within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._judged(host, port)
                return await self._first_to_answer(addresses, port, timeout)
        except TimeoutError:
            raise WireError(Breakage.CONNECT_TIMEOUT) from None

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> MessageStream:
        """Always refused: a local socket is no host."""
        raise address_refused("A local socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _judged(self, host: str, port: int) -> Sequence[str]:
        answers = (host,) if _is_literal(host) else await self._resolved(host, port)
        if not all(is_allowed(answer, self._opened) for answer in answers):
            raise address_refused(host)
        return answers[:_ANSWERS_MAX]

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        try:
            answers = await self._resolver.resolve(host, port)
        except TimeoutError:
            raise
        except OSError:
            answers = ()
        if not answers:
            raise WireError(Breakage.UNRESOLVED)
        return answers

    async def _first_to_answer(self, addresses: Sequence[str], port: int, timeout_s: float | None) -> MessageStream:
        for position, address in enumerate(addresses):
            left = len(addresses) - position
            share_s = timeout_s / (left + 1) if timeout_s is not None and left > 1 else None
            try:
                stream = await self._network.connect_tcp(address, port, timeout=share_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
            return MessageStream(stream, address, self._closings)
        raise WireError(Breakage.UNREACHABLE)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
