"""Egress clients that a test opens as it needs them and that are all closed when it ends."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore

from toolhub_service.domain.ports import Resolver
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.transport import GuardedTransport


class Clients:
    """Makes clients over transports of their own."""

    def __init__(self) -> None:
        self._opened: list[EgressClient] = []

    def __call__(
        self,
        resolver: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        max_connections: int = 100,
        **options: Any,
    ) -> EgressClient:
        transport = GuardedTransport(resolver, tls=tls, network=network, max_connections=max_connections)
        self._opened.append(EgressClient(transport, **options))
        return self._opened[-1]

    async def aclose(self) -> None:
        for client in self._opened:
            await client.aclose()


@asynccontextmanager
async def egress_clients() -> AsyncIterator[Clients]:
    """A maker of clients, until the block ends."""
    clients = Clients()
    try:
        yield clients
    finally:
        await clients.aclose()
