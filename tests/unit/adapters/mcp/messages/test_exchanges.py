"""Requests whose callers stop waiting end wherever they wait, and no others do."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from toolhub_service.adapters.mcp.messages.exchanges import Exchange, Exchanges, RequestCancelled


def request(**fields: str) -> httpx2.Request:
    return httpx2.Request("POST", "http://127.0.0.1/mcp", headers=fields)


async def test_a_request_that_was_redirected_is_given_up_with_the_first() -> None:
    exchanges = Exchanges()

    def moved(sent: httpx2.Request) -> httpx2.Response:
        begun.append(exchanges.begin(sent))
        return httpx2.Response(307, headers={"location": "/mcp/"}) if len(begun) == 1 else httpx2.Response(202)

    begun: list[Exchange] = []
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(moved), follow_redirects=True) as client:
        with exchanges.name_exchange() as fields:
            await client.post("http://127.0.0.1/mcp", headers=fields)
    for exchange in begun:
        with pytest.raises(RequestCancelled):
            await exchange.wait(done)
    assert len(begun) == 2


async def test_a_cancelled_request_is_given_up_wherever_it_waits() -> None:
    exchanges = Exchanges()
    with exchanges.name_exchange() as fields:
        sent = request(**fields)
        exchange = exchanges.begin(sent)
        waiting = asyncio.ensure_future(exchange.wait(asyncio.Event().wait))
        await asyncio.sleep(0)
    assert dict(sent.headers) == dict(request().headers)
    with pytest.raises(RequestCancelled):
        await waiting
    with pytest.raises(RequestCancelled):
        await exchange.wait(asyncio.Event().wait)


async def test_a_part_that_never_suspends_is_given_up_too() -> None:
    exchanges = Exchanges()
    with exchanges.name_exchange() as fields:
        exchange = exchanges.begin(request(**fields))

    async def there_already() -> str:
        return "flood"

    with pytest.raises(RequestCancelled):
        await exchange.wait(there_already)


async def test_a_request_posted_after_its_caller_left_is_not_sent() -> None:
    exchanges = Exchanges()
    with exchanges.name_exchange() as fields:
        pass
    with pytest.raises(RequestCancelled):
        await exchanges.begin(request(**fields)).wait(asyncio.Event().wait)


async def done() -> str:
    await asyncio.sleep(0)
    return "done"


async def test_no_other_request_is_given_up() -> None:
    exchanges = Exchanges()
    with exchanges.name_exchange() as another:
        with exchanges.name_exchange() as fields:
            exchanges.begin(request(**fields))
        others = [exchanges.begin(request(**another)), exchanges.begin(request())]
        for exchange in others:
            assert await exchange.wait(done) == "done"


async def test_a_cancellation_of_the_caller_stays_one() -> None:
    waiting = asyncio.ensure_future(Exchanges().begin(request()).wait(asyncio.Event().wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
