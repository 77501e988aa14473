from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpcore
import httpx
import pytest

from tests.fakes.http_server import ALL_METHODS, LOOPBACK, RecordedRequest, always, response, serving
from tests.fakes.resolvers import FixedResolver
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.backend import GuardedBackend
from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.closings import Closings
from toolhub_service.egress.pools import POOLS_MAX
from toolhub_service.egress.transport import GuardedTransport, address_of, checked_extensions
from toolhub_service.guards.addresses import PUBLIC, Networks
from toolhub_service.guards.urls import CheckedUrl, check_url

NAMES = FixedResolver(default=("127.0.0.1",))


@pytest.fixture
async def transport() -> AsyncIterator[GuardedTransport]:
    async with GuardedTransport(NAMES, max_connections=4) as transport:
        yield transport


def request_for(url: CheckedUrl, shown: str = "http://shown.example/") -> httpx.Request:
    return httpx.Request("GET", shown, extensions=checked_extensions(url))


async def answered(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> bytes:
    answer = await transport.handle_async_request(request)
    body = await answer.aread()
    await answer.aclose()
    return body


async def test_request_that_was_not_checked_is_not_sent(transport: GuardedTransport) -> None:
    async with serving(always(response())) as server:
        with pytest.raises(TypeError):
            await transport.handle_async_request(httpx.Request("GET", server.url()))
        assert server.connections == 0


async def test_a_request_goes_to_its_checked_destination_whatever_its_headers(transport: GuardedTransport) -> None:
    async with serving(always(response(b"x"))) as server:
        url = check_url(server.url("/a/../b?c", "a.example"), "GET", (server.rule("a.example"),))
        request = request_for(url, "https://elsewhere.example/secret")
        request.headers["Host"] = "internal.example"
        answer = await transport.handle_async_request(request)
        assert address_of(answer) == "127.0.0.1"
        await answer.aclose()
        assert (server.asked[0].target, server.asked[0].headers["host"]) == (url.target, url.authority)


async def test_client_under_rules_sends_only_what_they_allow(transport: GuardedTransport) -> None:
    async with serving(always(response(b"x"))) as server:
        rule = server.rule("a.example", methods=frozenset({"GET"}))
        async with httpx.AsyncClient(transport=transport.under((rule,)), trust_env=False) as client:
            url = server.url("/x?y=1", "a.example")
            assert (await client.get(url)).content == b"x"
            for refused in (client.post(url), client.get(server.url(host="b.example")), client.get("http://10.0.0.1/")):
                with pytest.raises(ToolFailure) as caught:
                    await refused
                assert caught.value.error.kind is ErrorKind.HTTP_DISALLOWED_HOST
        assert [asked.target for asked in server.asked] == ["/x?y=1"]
        assert await answered(transport, request_for(check_url(url, "GET", (rule,)))) == b"x"


async def test_breakage_is_an_error_of_httpx(transport: GuardedTransport) -> None:
    async with serving(always(b"", keep=False)) as server:
        rule = server.rule("a.example")
        async with httpx.AsyncClient(transport=transport.under((rule,)), trust_env=False) as client:
            with pytest.raises(httpx.TransportError) as caught:
                await client.get(server.url(host="a.example"))
            assert isinstance(caught.value, WireError)
            assert caught.value.breakage is Breakage.BROKEN


async def test_more_exchanges_than_places_wait_for_one(transport: GuardedTransport) -> None:
    hold, under_way = asyncio.Event(), asyncio.Semaphore(0)

    async def held(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        under_way.release()
        await hold.wait()
        writer.write(response(asked.target.encode()))

    async with serving(held) as server:
        rules = (
            server.rule("a.example"),
            EgressRule(("b.example",), ports=frozenset({server.port}), cidrs=("127.0.0.1",)),
        )
        urls = [
            check_url(server.url(f"/{n}", host), "GET", rules) for n in range(4) for host in ("a.example", "b.example")
        ]
        calls = [asyncio.create_task(answered(transport, request_for(url))) for url in urls]
        for _ in range(4):
            await asyncio.wait_for(under_way.acquire(), 60)
        assert server.connections == 4
        assert under_way.locked()
        hold.set()
        assert await asyncio.gather(*calls) == [url.target.encode() for url in urls]


async def test_connections_are_kept_only_so_long() -> None:
    async with serving(always(response(b"x"))) as server, GuardedTransport(NAMES, keep_alive_s=0.0) as transport:
        url = check_url(server.url(host="a.example"), "GET", (server.rule("a.example"),))
        for _ in range(3):
            assert await answered(transport, request_for(url)) == b"x"
        assert server.connections == 3


async def test_connections_of_networks_long_unused_are_closed(transport: GuardedTransport) -> None:
    async with serving(always(response(b"x"))) as server:

        def opening(number: int) -> EgressRule:
            cidrs = (*LOOPBACK, f"10.0.0.{number}/32")
            return EgressRule(("a.example",), ports=frozenset({server.port}), methods=ALL_METHODS, cidrs=cidrs)

        url = server.url(host="a.example")
        for number in (*range(POOLS_MAX), 0):
            await answered(transport, request_for(check_url(url, "GET", (opening(number),))))
        assert server.connections == POOLS_MAX
        await answered(transport, request_for(check_url(url, "GET", (opening(POOLS_MAX),))))
        await asyncio.wait_for(server.gone.wait(), 60)
        await answered(transport, request_for(check_url(url, "GET", (opening(0),))))
        assert server.connections == POOLS_MAX + 1


async def test_exchange_under_way_outlives_the_closing_of_its_transport(transport: GuardedTransport) -> None:
    async with serving(always(response(b"hello"))) as server:
        url = check_url(server.url(host="a.example"), "GET", (server.rule("a.example"),))
        answer = await transport.handle_async_request(request_for(url))
        await transport.aclose()
        assert await answer.aread() == b"hello"
        await answer.aclose()
        await asyncio.wait_for(server.gone.wait(), 60)


async def test_local_sockets_are_refused() -> None:
    backend = GuardedBackend(NAMES, Networks(LOOPBACK), Closings(), httpcore.AnyIOBackend())
    with pytest.raises(ToolFailure) as caught:
        await backend.connect_unix_socket("/run/docker.sock")
    assert caught.value.error.kind is ErrorKind.HTTP_DISALLOWED_HOST


async def test_host_that_never_accepts_meets_the_timeout() -> None:
    class NeverResolver(FixedResolver):
        async def resolve(self, host: str, port: int) -> list[str]:
            await asyncio.Event().wait()
            return []

    backend = GuardedBackend(NeverResolver(), PUBLIC, Closings(), httpcore.AnyIOBackend())
    with pytest.raises(WireError) as caught:
        await backend.connect_tcp("a.example", 80, timeout=0.01)
    assert caught.value.breakage is Breakage.CONNECT_TIMEOUT
