"""A cancelled request gives its socket and its task back, also in the older era and whatever its server does."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.mcp_servers.hostile import hostile_http
from tests.unit.adapters.mcp.stage import at, call, descriptors, linked, soon, text_of, until
from toolhub_service.adapters.mcp.bounded import GivenUp, InFlight

CANCELLED = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"x"}}'
REQUEST = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}'


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("words", [("calls",), ("calls", "deaf"), ("calls", "json")])
async def test_calls_that_are_cancelled_leave_no_socket_and_no_task(era: str, words: tuple[str, ...]) -> None:
    async with hostile_http(*words, era=era) as (server, url), linked(at(url)) as link:
        session = await link.session(soon())
        await call(session, "echo", text="hi")
        tasks, files = len(asyncio.all_tasks()), descriptors()
        calls = [asyncio.ensure_future(call(session, "never")) for _ in range(20)]
        await until(lambda: len(server.called) == 21)
        for each in calls:
            each.cancel()
        await asyncio.wait(calls)
        if "deaf" not in words:  # that one holds on to its own end of each
            await until(lambda: len(asyncio.all_tasks()) <= tasks and descriptors() <= files)
        else:
            await until(lambda: descriptors() <= files + 20)
        assert text_of(await call(session, "echo", text="still there")) == "still there"
        assert link.connects == 1


async def test_what_is_cancelled_is_given_up_wherever_it_waits() -> None:
    flights = InFlight()
    key, flight = flights.begin(REQUEST)
    waiting = asyncio.ensure_future(flight.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    flights.heed(CANCELLED)
    with pytest.raises(GivenUp):
        await waiting
    with pytest.raises(GivenUp):
        await flight.wait(asyncio.Event().wait())
    flights.end(key, flight)
    assert len(flights) == 0


async def test_no_other_request_is_given_up() -> None:
    flights = InFlight()
    others = [
        flights.begin(REQUEST.replace(b"7", b"77")),
        flights.begin(REQUEST.replace(b"7", b'"7"')),
        flights.begin(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
    ]
    flights.heed(CANCELLED)
    flights.heed(REQUEST)
    for _, flight in others:
        assert await flight.wait(asyncio.sleep(0, "done")) == "done"


async def test_a_cancellation_of_the_caller_stays_one() -> None:
    _, flight = InFlight().begin(REQUEST)
    waiting = asyncio.ensure_future(flight.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
