"""A call may be cancelled between any two steps of the event loop; nothing of it remains."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.egress import Clients, egress_clients
from tests.fakes.http_server import RawServer, always, response, serving, silent_after
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tls import server_and_client_tls
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.egress.client import EgressClient, HttpRequest

STEPS = 200
PLACES = 4
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with egress_clients() as clients:
        yield clients


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - asked at every step of the loop


async def left_open(count: int) -> int:
    """Descriptors, when no more than these are left, or after a minute: the server's side closes when it notices."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + 60
    while descriptors() > count and loop.time() < give_up_s:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return descriptors()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def got(client: EgressClient, server: RawServer, host: str) -> bytes:
    deadline_s = asyncio.get_running_loop().time() + 30
    async with client.open(HttpRequest(server.url(host=host)), (server.rule(host),), deadline_s=deadline_s) as answer:
        return await answer.body(1 << 20).whole()


async def cancelled_after(
    steps: int, client: EgressClient, server: RawServer, host: str, *, again_after: int = 0
) -> None:
    call = asyncio.create_task(got(client, server, host))
    await turns(steps)
    call.cancel()
    if again_after:
        await turns(again_after)
        call.cancel()
    await asyncio.wait([call])
    if not call.cancelled():
        assert call.result() == b"abc"


async def all_at_once(client: EgressClient, server: RawServer, host: str) -> None:
    """Every place can be taken: none was lost."""
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(got(client, server, host) for _ in range(2 * PLACES))) == [b"abc"] * 2 * PLACES


@pytest.mark.parametrize("again_after", [0, 1, 2, 3])
@pytest.mark.parametrize("raw", [response(b"abc"), CHUNKED])
@pytest.mark.parametrize("keep", [True, False])
async def test_call_cancelled_at_any_step_leaves_neither_descriptor_nor_place(
    clients: Clients, raw: bytes, again_after: int, keep: bool
) -> None:
    client = clients(FixedResolver(default=("127.0.0.1",)), max_connections=PLACES)
    before = descriptors()
    async with serving(always(raw, keep=keep)) as server:
        for steps in range(STEPS):
            await cancelled_after(steps, client, server, "a.example", again_after=again_after)
        await all_at_once(client, server, "a.example")
        await client.aclose()
    assert await left_open(before) <= before


async def test_calls_cancelled_together_leave_neither_descriptor_nor_place(clients: Clients) -> None:
    client = clients(FixedResolver(default=("127.0.0.1",)), max_connections=PLACES)
    before = descriptors()
    async with serving(always(response(b"abc"))) as server:
        for steps in range(0, STEPS, 5):
            calls = [asyncio.create_task(got(client, server, "a.example")) for _ in range(3 * PLACES)]
            await turns(steps)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        await all_at_once(client, server, "a.example")
        await client.aclose()
    assert await left_open(before) <= before


async def test_call_cancelled_at_any_step_of_tls_leaves_neither_descriptor_nor_place(
    clients: Clients, tmp_path: Path
) -> None:
    server_tls, client_tls = server_and_client_tls(tmp_path, "a.example")
    client = clients(FixedResolver(default=("127.0.0.1",)), tls=client_tls, max_connections=PLACES)
    async with serving(always(response(b"abc"), keep=False), server_tls) as server:
        await got(client, server, "a.example")
        before = descriptors()
        for steps in range(60):
            await cancelled_after(steps, client, server, "a.example")
        await all_at_once(client, server, "a.example")
        await client.aclose()
        assert await left_open(before) <= before


async def test_cancelled_tls_handshake_closes_the_connection(clients: Clients) -> None:
    gone = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.set()
        await reader.read(-1)
        gone.set()
        writer.close()

    greeted = asyncio.Event()
    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    state = RawServer(port=server.sockets[0].getsockname()[1], scheme="https")
    client = clients(FixedResolver(default=("127.0.0.1",)))
    call = asyncio.create_task(got(client, state, "a.example"))
    await asyncio.wait_for(greeted.wait(), 60)
    await turns(20)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await asyncio.wait_for(gone.wait(), 60)
    server.close()
    await server.wait_closed()


async def test_two_hundred_calls_that_run_out_of_time_leave_the_client_usable(clients: Clients) -> None:
    client = clients(FixedResolver(default=("127.0.0.1",)), max_connections=PLACES)
    async with serving(silent_after(b"")) as silent, serving(always(response(b"abc"))) as server:
        loop = asyncio.get_running_loop()

        async def in_vain() -> None:
            with pytest.raises(ToolFailure):
                async with client.open(HttpRequest(silent.url()), (silent.rule(),), deadline_s=loop.time() + 0.05):
                    pytest.fail("answered")

        await asyncio.gather(*(in_vain() for _ in range(200)))
        await all_at_once(client, server, "a.example")
