"""The proxy that a browser has for its only way out, spoken to by hand."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.fakes.http_server import always, response, serving, silent_after
from tests.fakes.resolvers import FixedResolver, TurningResolver
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.tools.web.filtering_proxy import USER, FilteringProxy

PAGE = response(b"hello", content_type="text/plain")


@asynccontextmanager
async def proxied(
    *rules: EgressRule, resolver: Resolver | None = None, max_bytes: int = 1_000_000
) -> AsyncIterator[tuple[FilteringProxy, int]]:
    proxy = FilteringProxy(resolver or FixedResolver(default=("127.0.0.1",)), rules, max_bytes=max_bytes)
    port = int((await proxy.start()).rpartition(":")[2])
    try:
        yield proxy, port
    finally:
        await proxy.close()


async def response_of(port: int, first: str, fields: Mapping[str, str], then: bytes = b"") -> bytes:
    """Everything that the proxy answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = first + "\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
    writer.write(head.encode("latin-1") + then)
    async with asyncio.timeout(60):
        answer = b""
        while piece := await _read(reader):
            answer += piece
    writer.transport.abort()
    return answer


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65_536)
    except ConnectionError:
        return b""


def known(proxy: FilteringProxy) -> dict[str, str]:
    token = base64.b64encode(f"{USER}:{proxy.password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {token}"}


async def status(proxy: FilteringProxy, port: int, first: str) -> int:
    return int((await response_of(port, first, known(proxy))).split(b" ", 2)[1])


async def test_a_request_goes_out_as_it_was_checked_and_the_connection_ends_with_it() -> None:
    async def closing(*args: object) -> bool:
        await always(PAGE)(*args)  # type: ignore[arg-type]
        return False

    async with serving(closing) as site, proxied(site.rule()) as (proxy, port):
        target = f"http://127.0.0.1:{site.port}/a/../b?c=%31"
        fields = {
            **known(proxy),
            "Host": "evil.example",
            "Connection": "keep-alive, X-Hop",
            "Upgrade": "h2c",
            "X-A": "1",
        }
        pipelined = f"GET http://127.0.0.1:{site.port}/second HTTP/1.1\r\n\r\n".encode()
        answer = await response_of(port, f"GET {target} HTTP/1.1", fields, pipelined)
        assert answer.endswith(b"\r\nConnection: close\r\n\r\nhello")
        (asked,) = site.asked
        assert asked.target == "/b?c=1"
        assert asked.headers == {"host": f"127.0.0.1:{site.port}", "x-a": "1", "connection": "close"}


@pytest.mark.promise("web.browser-egress")
async def test_a_host_that_no_rule_allows_is_refused_and_not_dialled() -> None:
    async with serving(always(PAGE)) as forbidden, serving(always(PAGE)) as site:
        rules = (
            site.rule("site.example"),
            EgressRule(("paths.example",), ports=frozenset({forbidden.port}), paths=("/v1",), cidrs=("127.0.0.0/8",)),
            EgressRule(("public.example",), ports=frozenset({forbidden.port}), schemes=frozenset({"http", "https"})),
        )
        at = forbidden.port
        async with proxied(*rules) as (proxy, port):
            refused: Sequence[str] = (
                f"GET http://127.0.0.1:{at}/ HTTP/1.1",
                f"GET http://site.example:{at}/ HTTP/1.1",
                f"GET http://paths.example:{at}/v2 HTTP/1.1",
                f"GET http://public.example:{at}/ HTTP/1.1",
                f"GET https://public.example:{at}/ HTTP/1.1",
                "GET file:///etc/passwd HTTP/1.1",
                "GET / HTTP/1.1",
                f"GET http://user@site.example:{site.port}/ HTTP/1.1",
                f"CONNECT 127.0.0.1:{at} HTTP/1.1",
                f"CONNECT localhost:{at} HTTP/1.1",
                f"CONNECT paths.example:{at} HTTP/1.1",
                f"CONNECT public.example:{at} HTTP/1.1",
                f"CONNECT [::1]:{at} HTTP/1.1",
                "CONNECT :1 HTTP/1.1",
            )
            got = {first: await status(proxy, port, first) for first in refused}
            assert {first: code for first, code in got.items() if code != 403} == {}
            odd = f"CONNECT site.example:{site.port}/@127.0.0.1:{at} HTTP/1.1"
            assert await status(proxy, port, odd) == 405
            assert await status(proxy, port, f"POST http://site.example:{site.port}/ HTTP/1.1") == 405
            assert (await status(proxy, port, "GET /"), forbidden.connections) == (400, 0)
            assert len(proxy.failures) >= len(refused)


async def test_a_stranger_is_refused() -> None:
    async with serving(always(PAGE)) as site, proxied(site.rule()) as (proxy, port):
        for fields in ({}, {"Proxy-Authorization": "Basic aHViOmd1ZXNz"}, {"Proxy-Authorization": proxy.password}):
            answer = await response_of(port, f"GET {site.url()} HTTP/1.1", fields)
            assert answer.startswith(b"HTTP/1.1 407 ")
        assert site.connections == 0


@pytest.mark.promise("net.no-rebinding")
async def test_a_name_is_resolved_once_and_checked_anew_for_each_connection() -> None:
    async with serving(always(PAGE)) as forbidden:
        rule = EgressRule(("turns.example",), ports=frozenset({forbidden.port}), cidrs=("127.0.0.2/32",))
        resolver = TurningResolver(("127.0.0.2",), ("127.0.0.1",))
        async with proxied(rule, resolver=resolver) as (proxy, port):
            for lookups, kind in ((1, ErrorKind.NETWORK_ERROR), (2, ErrorKind.HTTP_DISALLOWED_HOST)):
                assert await status(proxy, port, f"CONNECT turns.example:{forbidden.port} HTTP/1.1") == 403
                assert resolver.lookups == lookups
                assert proxy.failures[-1].error.kind is kind
        assert forbidden.connections == 0


async def test_a_tunnel_carries_both_ways_and_no_more_than_its_bytes() -> None:
    async with serving(silent_after(response(b"x" * 100_000))) as site:
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        for max_bytes in (1_000_000, 10_000):
            async with proxied(site.rule(), max_bytes=max_bytes) as (proxy, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                fields = "".join(f"{name}: {value}\r\n" for name, value in known(proxy).items())
                writer.write(f"CONNECT 127.0.0.1:{site.port} HTTP/1.1\r\n{fields}\r\n".encode() + request)
                await writer.drain()
                async with asyncio.timeout(60):
                    if max_bytes == 10_000:
                        got = await reader.read()
                        assert len(got) < 10_000
                        assert proxy.is_exhausted
                    else:
                        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 Whatever")
                        assert await reader.readexactly(100_000) == b"x" * 100_000
                writer.transport.abort()


async def test_an_answer_that_is_not_http_is_reported() -> None:
    for raw in (b"garbage\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n" * 20, b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000):
        async with serving(always(raw, keep=False)) as site, proxied(site.rule()) as (proxy, port):
            assert await status(proxy, port, f"GET {site.url()} HTTP/1.1") == 502
