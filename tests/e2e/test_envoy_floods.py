"""Floods of HTTP/2 frames without a key, against the shipped deploy/envoy.yaml in a real Envoy: what reaches the hub.

Frames and RPCs are counted, never times; figures are in docs/threat-model.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from tests.e2e.envoy_proxy import envoy
from tests.hub import RunningHub, request
from tests.mcp_server.mcp_hub import keys_of, mcp_hub
from tests.security.http2_attackers import FLOODS, flood
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

SENT = 5_000
# More than the buffers of a connection take of even the smallest frames.
ENDLESS = 5_000_000
# Envoy closes these connections; the others end with their frames, and are answered by Envoy.
CLOSED = ("RPCs that are reset", "CONTINUATION frames", "empty CONTINUATION frames", "heads that are too long", "pings")
_REFUSED = re.compile(r'toolhub_authentications_total\{[^}]*outcome="refused"[^}]*\} (\d+)')


@asynccontextmanager
async def behind_envoy(folder: Path) -> AsyncIterator[tuple[RunningHub, int, str]]:
    """A hub where callers have keys, the port of the Envoy before it, and a key."""
    async with mcp_hub(folder, settings={"auth": {"modes": ["api-key"]}}) as hub:
        (key,) = keys_of(hub, "ann").values()
        mcp = [hub.url.removeprefix("http://").removesuffix("/mcp")]
        async with envoy(folder, [f"127.0.0.1:{hub.grpc.hub.server.port}"], mcp=mcp) as proxy:
            yield hub.grpc, int(proxy.address.rpartition(":")[2]), key


def refused_by(hub: RunningHub) -> int:
    """RPCs that the hub itself has looked at, and refused for their credential."""
    return sum(map(int, _REFUSED.findall(hub.hub.observing.metrics.exposition().decode())))


@pytest.mark.promise("transport.floods-behind-envoy")
async def test_a_flood_ends_at_envoy_and_calls_go_on(tmp_path: Path) -> None:
    async with behind_envoy(tmp_path) as (hub, port, key):
        for name, frames in FLOODS.items():
            before = refused_by(hub)
            most = ENDLESS if name in CLOSED else SENT
            async with asyncio.timeout(120):
                sent = [await flood(port, frames, max_frames=most) for _ in range(2)]
            if name in CLOSED:
                assert max(sent) < ENDLESS, f"{name}: all {sent} were taken"
            assert refused_by(hub) - before < 1_500, name
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = ToolServiceStub(channel).Invoke(request("core/util.time.now"), metadata=(("x-api-key", key),))
                assert (await call).result.ok, name
