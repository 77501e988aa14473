from __future__ import annotations

import pytest

from tests.fakes.resolvers import FixedResolver
from tests.ports.resolver_suite import check_resolver
from toolhub_service.egress.resolver import SystemResolver


async def test_system_resolver_keeps_to_the_port() -> None:
    resolver = SystemResolver()
    # A name of more than 255 bytes is refused without asking a name server.
    unknown = f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 63}.invalid"
    assert set(await check_resolver(resolver, known="localhost", unknown=unknown)) <= {"127.0.0.1", "::1"}
    resolver.close()


async def test_fixed_resolver_keeps_to_the_port() -> None:
    resolver = FixedResolver({"a.example": ("10.0.0.1", "::1")})
    assert list(await check_resolver(resolver, known="a.example", unknown="b.example")) == ["10.0.0.1", "::1"]


async def test_a_closed_resolver_knows_no_host() -> None:
    resolver = SystemResolver()
    resolver.close()
    with pytest.raises(OSError, match="closed"):
        await resolver.resolve("localhost", 80)
