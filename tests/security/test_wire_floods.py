"""Floods of HTTP/2 frames at the gRPC port, without a key: how much of them the hub's event loop gets to see.

What gRPC's C core does with them beside the loop no test counts: docs/threat-model.md has the figures, with Envoy too.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import running_hub
from tests.security.http2_attackers import ACK, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame, rpcs_of
from toolhub_service.transport.interceptors.admission import Refusals
from toolhub_service.transport.rpc import Method

KEYS = {"auth": {"modes": ["api-key"]}}
# Codes of RST_STREAM: REFUSED_STREAM, or ENHANCE_YOUR_CALM where the client has not acknowledged the limit.
BY_THE_CORE = {b"\0\0\0\x07", b"\0\0\0\x0b"}
SENT = 10_000  # ten times the streams of a connection
INVOKE = Method("/toolhub.v1.ToolService/Invoke", "toolhub.v1.ToolService", "Invoke", "unary")
HEALTH = "/grpc.health.v1.Health/Check"


async def reset_by_the_core(port: int, path: str, greeting: bytes) -> int:
    """Of so many RPCs on one connection, those that gRPC reset because it had its share; the rest are held."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + frame(SETTINGS, 0, 0) + greeting + b"".join(islice(rpcs_of(path), SENT)))
    last = 2 * SENT - 1
    refused = stream = 0
    async with asyncio.timeout(60):
        while stream != last:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in (HEADERS, RST_STREAM):
                stream = int.from_bytes(head[5:], "big")
                refused += body in BY_THE_CORE
    writer.transport.abort()
    return refused


@pytest.mark.promise("transport.strangers-are-paced")
@pytest.mark.parametrize("path", [INVOKE.path, "/toolhub.v1.JobService/SubmitJob", "/x.Y/Z", HEALTH])
async def test_most_rpcs_of_a_flood_without_a_key_never_reach_the_loop(path: str, tmp_path: Path) -> None:
    """Fails at 513ce725: the loop took up each of them and refused it at once, before whoever came later."""
    async with running_hub(tmp_path, settings=KEYS) as hub:
        for greeting in (b"", frame(SETTINGS, ACK, 0)):
            assert await reset_by_the_core(hub.hub.server.port, path, greeting) > SENT * 0.8


async def test_a_stranger_is_refused_at_once_and_after_a_few_refusals_slowly() -> None:
    refusals = Refusals()
    for _ in range(20):
        await asyncio.wait_for(refusals.pace_stranger("ipv4:10.0.0.1:5", INVOKE), 0.5)
    held = [asyncio.create_task(refusals.pace_stranger(f"ipv4:10.0.0.1:{port}", INVOKE)) for port in range(50)]
    await asyncio.sleep(0)
    assert refusals.held_of_strangers >= 45, "the port does not count"
    assert refusals.held_calls == refusals.held_of_strangers, "they take no call's place"
    assert refusals.held == 0, "nor a tenant's"
    await asyncio.wait_for(refusals.pace_stranger("ipv4:10.0.0.2:5", INVOKE), 0.5)
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert (refusals.held_of_strangers, refusals.held_calls) == (0, 0)


async def test_a_proxys_health_checks_do_not_wait_behind_what_strangers_send_through_it() -> None:
    refusals = Refusals()
    held = [asyncio.create_task(refusals.pace_stranger("ipv4:10.0.0.1:5", INVOKE)) for _ in range(60)]
    await asyncio.sleep(0)
    check = Method(HEALTH, "grpc.health.v1.Health", "Check", "unary")
    await asyncio.wait_for(refusals.pace_open("ipv4:10.0.0.1:6", check), 0.2)
    assert refusals.held_of_strangers >= 35
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_refusals_of_strangers_are_held_up_to_a_bound() -> None:
    refusals = Refusals(most_of_strangers=5)
    held = [asyncio.create_task(refusals.pace_stranger("ipv4:10.0.0.1:5", INVOKE)) for _ in range(100)]
    await asyncio.sleep(0)
    assert refusals.held_of_strangers == 5
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_an_unknown_method_is_refused_as_such(tmp_path: Path) -> None:
    async with running_hub(tmp_path, settings=KEYS) as hub:
        path, channel = "/toolhub.v1.ToolService/NoSuchMethod", hub.channel
        multis: list[tuple[Any, Any]] = [
            (channel.unary_unary(path), b""),
            (channel.unary_stream(path), b""),
            (channel.stream_stream(path), iter([b""])),
        ]
        for multi, sent in multis:
            call = multi(sent)
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
