"""Resolve once, judge every answer, connect to an address that was judged (no second lookup, hence no rebinding).

If one answer of a name is not allowed the name is refused as a whole: an attacker who controls the zone could otherwise
wait until the resolver's order favours the forbidden one. Answers are tried in turn, each with its share of the time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.addresses import is_allowed
from toolhub_service.guards.urls import JudgedUrl, address_refused
from toolhub_service.tools.egress.breakage import Breakage, WireError
from toolhub_service.tools.egress.stream import Connect, Stream, connect

_ANSWERS_MAX = 8


class Dialer:
    """Opens connections for judged URLs, and for nothing else."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 10.0,
        connect: Connect = connect,
    ) -> None:
        """`tls` verifies servers; None: the system's trust store, TLS 1.2 or later."""
        self._resolver = resolver
        self._tls = tls or _default_tls()
        self._connect_timeout_s = connect_timeout_s
        self._connect = connect

    async def dial(self, url: JudgedUrl) -> tuple[Stream, str]:
        """A connection to the URL's origin, and the address that was dialled.

        Raises:
            ToolFailure: HTTP_DISALLOWED_HOST when any address of the host is not allowed.
            WireError: when the host does not resolve, cannot be reached or is not who it says.
        """
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = await self._addresses(url)
                return await self._first_to_answer(url, addresses)
        except TimeoutError:
            raise WireError(Breakage.CONNECT_TIMEOUT) from None

    async def _addresses(self, url: JudgedUrl) -> Sequence[str]:
        if url.is_address:
            answers: Sequence[str] = (url.host,)
        else:
            answers = await self._resolved(url)
        if not all(is_allowed(answer, url.opened) for answer in answers):
            raise address_refused(url.host)
        return answers[:_ANSWERS_MAX]

    async def _resolved(self, url: JudgedUrl) -> Sequence[str]:
        try:
            answers = await self._resolver.resolve(url.host, url.port)
        except TimeoutError:
            raise
        except OSError:
            answers = ()
        if not answers:
            raise WireError(Breakage.UNRESOLVED)
        return answers

    async def _first_to_answer(self, url: JudgedUrl, addresses: Sequence[str]) -> tuple[Stream, str]:
        tls = self._tls if url.scheme == "https" else None
        server_name = url.host if tls is not None else None
        breakage = Breakage.UNREACHABLE
        for position, address in enumerate(addresses):
            share_s = self._connect_timeout_s / (len(addresses) - position + 1)
            try:
                async with asyncio.timeout(share_s if position + 1 < len(addresses) else None):
                    return await self._connect(address, url.port, tls, server_name), address
            except ssl.SSLError:
                breakage = Breakage.UNTRUSTED
            except OSError:
                continue
        raise WireError(breakage)


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
