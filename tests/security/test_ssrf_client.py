"""Attacks that show only when something is sent: rebinding, redirects, proxies, smuggling, bombs, slow bodies."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.egress import Clients, egress_clients
from tests.fakes.http_server import RawServer, RecordedRequest, always, by_target, response, serving, silent_after
from tests.fakes.resolvers import FixedResolver, TurningResolver
from tests.fakes.tls import server_and_client_tls
from tests.fakes.tool_context import egress_context
from tests.security.test_ssrf_urls import RefusingNetwork
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import EgressClient, HttpRequest
from toolhub_service.guards.secrets import Redactor
from toolhub_service.tools.http.exchange import HttpServices
from toolhub_service.tools.http.tools import HttpFetchText

ANY_PUBLIC = EgressRule(("*",))
MEBIBYTE = 1 << 20


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with egress_clients() as clients:
        yield clients


async def refused(
    client: EgressClient, url: str, *rules: EgressRule, timeout_s: float = 5.0, max_bytes: int = MEBIBYTE
) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        async with client.open(
            HttpRequest(url), rules, deadline_s=asyncio.get_running_loop().time() + timeout_s
        ) as answer:
            await answer.body(max_bytes).whole()
    return caught.value.error


@pytest.mark.promise("net.no-rebinding")
async def test_rebinding_name_is_looked_up_once_and_the_checked_address_is_dialled(clients: Clients) -> None:
    resolver, inner = TurningResolver(("93.184.216.34",), ("127.0.0.1",)), RefusingNetwork()
    error = await refused(clients(resolver, network=inner), "http://rebind.example/", ANY_PUBLIC)
    assert error.kind is ErrorKind.NETWORK_ERROR
    assert (resolver.lookups, inner.dialled) == (1, ["93.184.216.34"])


async def test_rebinding_to_a_private_address_between_two_calls_is_refused(clients: Clients) -> None:
    resolver, inner = TurningResolver(("93.184.216.34",), ("169.254.169.254",)), RefusingNetwork()
    client = clients(resolver, network=inner)
    await refused(client, "http://rebind.example/", ANY_PUBLIC)
    assert (await refused(client, "http://rebind.example/", ANY_PUBLIC)).kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert inner.dialled == ["93.184.216.34"]


@pytest.mark.promise("net.no-rebinding")
@pytest.mark.parametrize(
    "answers",
    [
        ("93.184.216.34", "127.0.0.1"),
        ("10.0.0.1", "93.184.216.34"),
        ("2606:4700::1111", "::ffff:169.254.169.254"),
        ("93.184.216.34",) * 20 + ("fe80::1",),
        ("fe80::1%eth0",),
        ("/run/docker.sock",),
        ("localhost",),
    ],
)
async def test_name_with_one_forbidden_answer_is_refused_as_a_whole(answers: tuple[str, ...], clients: Clients) -> None:
    inner = RefusingNetwork()
    client = clients(FixedResolver(default=answers), network=inner)
    error = await refused(client, "http://mixed.example/", ANY_PUBLIC)
    assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert inner.dialled == []
    assert not any(answer in error.message for answer in answers if answer != "localhost")


async def test_answers_are_tried_in_turn(clients: Clients) -> None:
    inner = RefusingNetwork()
    answers = ("2606:4700::1111", "93.184.216.34")
    await refused(clients(FixedResolver(default=answers), network=inner), "http://a.example/", ANY_PUBLIC)
    assert inner.dialled == list(answers)


@pytest.mark.promise("net.redirects-checked")
@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://10.0.0.1/",
        "//127.1/",
        "http://localhost:22/",
        "http://inside.example/",
        "http://unlisted.example/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "http://a.example@127.0.0.1/",
        "http:\\\\127.0.0.1\\",
        "javascript:alert(1)",
        "http://0x7f000001/",
    ],
)
async def test_redirect_is_checked_like_a_first_request(location: str, clients: Clients) -> None:
    resolver = FixedResolver({"inside.example": ("127.0.0.1",)}, default=("93.184.216.34",))
    client = clients(resolver)
    async with serving(always(response(status=302, location=location))) as server:
        inside = EgressRule(("inside.example",))
        error = await refused(client, server.url(), server.rule(), inside)
        assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
        assert len(server.asked) == 1


async def test_redirect_to_another_port_of_the_same_host_is_refused(clients: Clients) -> None:
    answers: dict[str, bytes] = {}
    async with serving(by_target(answers)) as other, serving(by_target(answers)) as server:
        answers["/"] = response(status=307, location=other.url())
        error = await refused(clients(FixedResolver()), server.url(), server.rule())
        assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
        assert other.connections == 0


@pytest.mark.promise("net.no-environment-proxies")
async def test_proxies_of_the_environment_have_no_effect(monkeypatch: pytest.MonkeyPatch, clients: Clients) -> None:
    async with serving(always(response(b"proxied"))) as proxy, serving(always(response(b"direct"))) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        client = clients(FixedResolver())
        deadline_s = asyncio.get_running_loop().time() + 30
        async with client.open(HttpRequest(server.url()), (server.rule(),), deadline_s=deadline_s) as answer:
            assert await answer.body(MEBIBYTE).whole() == b"direct"
        assert proxy.connections == 0


@pytest.mark.promise("net.no-smuggling")
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"transfer_encoding": "chunked"},
        {"Host": "internal"},
        {"X-A": "b\r\nTransfer-Encoding: chunked"},
        {"X-A\r\nHost": "internal"},
        {"Connection": "X-Forwarded-For"},
        {"Metadata-Flavor": "Google"},
        {"X-HTTP-Method-Override": "DELETE"},
    ],
)
async def test_smuggling_header_never_reaches_the_wire(headers: dict[str, str], clients: Clients) -> None:
    async with serving(always(response())) as server:
        tool = HttpFetchText(HttpServices(clients(FixedResolver()), Redactor()))
        args = tool.In(url=server.url(), method="POST", headers=headers, body="GET /admin HTTP/1.1\r\n\r\n")
        with pytest.raises(ToolFailure) as caught:
            await tool.run(args, egress_context(server.rule()))
        assert caught.value.error.kind is ErrorKind.INVALID_INPUT
        assert server.connections == 0


@pytest.mark.promise("net.no-smuggling")
@pytest.mark.parametrize("target", ["/%0d%0aX-Injected:%20yes", "/a%20HTTP/1.1%0d%0aHost:%20b", "/?q=%0A%0D"])
async def test_encoded_line_breaks_stay_encoded_on_the_wire(target: str, clients: Clients) -> None:
    async with serving(always(response())) as server:
        client = clients(FixedResolver())
        deadline_s = asyncio.get_running_loop().time() + 30
        async with client.open(HttpRequest(server.url(target)), (server.rule(),), deadline_s=deadline_s):
            assert server.asked[0].target == target.replace("%0d%0a", "%0D%0A")
            assert "x-injected" not in server.asked[0].headers


def zeros(size_mib: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(bytes(MEBIBYTE)) for _ in range(size_mib)]
    return b"".join(pieces) + packer.flush()


async def peak_bytes_of_fetching(client: EgressClient, server: RawServer, max_bytes: int) -> tuple[int, int]:
    """Peak of traced memory while reading a body within a bound, and how much was read."""
    tracemalloc.start()
    try:
        deadline_s = asyncio.get_running_loop().time() + 20
        async with client.open(HttpRequest(server.url()), (server.rule(),), deadline_s=deadline_s) as answer:
            body = answer.body(max_bytes)
            data = await body.whole()
            assert body.is_cut
        return tracemalloc.get_traced_memory()[1], len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.promise("net.no-bombs")
async def test_gzip_bomb_is_cut_within_bounded_memory(clients: Clients) -> None:
    bomb = zeros(200)
    assert len(bomb) < 300_000
    async with serving(always(response(bomb, content_encoding="gzip"))) as server:
        peak_bytes, read_bytes = await peak_bytes_of_fetching(clients(FixedResolver()), server, MEBIBYTE)
        assert read_bytes == MEBIBYTE
        assert peak_bytes < 5 * MEBIBYTE


async def test_second_layer_of_gzip_is_refused_or_left_alone(clients: Clients) -> None:
    double = gzip.compress(zeros(200))
    answers = {
        "/two": response(double, content_encoding="gzip, gzip"),
        "/one": response(double, content_encoding="gzip"),
    }
    assert len(double) < 2_000
    async with serving(by_target(answers)) as server:
        client = clients(FixedResolver())
        assert (await refused(client, server.url("/two"), server.rule())).kind is ErrorKind.UPSTREAM_ERROR
        deadline_s = asyncio.get_running_loop().time() + 30
        async with client.open(HttpRequest(server.url("/one")), (server.rule(),), deadline_s=deadline_s) as answer:
            assert len(await answer.body(MEBIBYTE).whole()) < 300_000


async def test_bomb_of_many_gzip_members_is_refused(clients: Clients) -> None:
    members = gzip.compress(b"") * 10_000
    async with serving(always(response(members, content_encoding="gzip"))) as server:
        assert (await refused(clients(FixedResolver()), server.url(), server.rule())).kind is ErrorKind.UPSTREAM_ERROR


async def test_a_bomb_ends_at_the_deadline_while_it_inflates(clients: Clients) -> None:
    async with serving(always(response(zeros(300), content_encoding="gzip"))) as server:
        client = clients(FixedResolver())
        error = await refused(client, server.url(), server.rule(), timeout_s=0.05, max_bytes=1 << 40)
        assert error.kind is ErrorKind.HTTP_TIMEOUT


async def test_endless_body_is_cut_and_the_connection_closed(clients: Clients) -> None:
    async with serving(silent_after(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3 * MEBIBYTE)) as server:
        peak_bytes, read_bytes = await peak_bytes_of_fetching(clients(FixedResolver()), server, MEBIBYTE)
        await asyncio.wait_for(server.gone.wait(), 60)
        assert read_bytes == MEBIBYTE
        assert peak_bytes < 10 * MEBIBYTE


async def test_a_slow_loris_body_ends_at_the_timeout_of_the_call(clients: Clients) -> None:
    async def drip(asked: object, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)  # the attack itself
        return False

    async with serving(drip) as server:
        tool = HttpFetchText(HttpServices(clients(FixedResolver()), Redactor()))
        with pytest.raises(ToolFailure) as caught:
            await tool.run(tool.In(url=server.url()), egress_context(server.rule(), timeout_s=0.2))
        assert caught.value.error.kind is ErrorKind.HTTP_TIMEOUT
        await asyncio.wait_for(server.gone.wait(), 60)


POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
TLS_RECORD_MAX_BYTES = 16_384
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "first",
    [
        response(b"first"),
        response(b"", status=204),
        response(b"", status=304),
        response(b"", status=302),
        CHUNKED_HEAD + b"5\r\nfirst\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"5;x=0\r\nfirst\r\n0;y\r\nTrailer: a\r\n\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n" + response(b"first"),
        response(b"x" * 300_000),
        response(b"x" * (TLS_RECORD_MAX_BYTES - len(response(b"x" * 16_000)) + 16_000)),
    ],
)
@pytest.mark.parametrize("more", [POISON, POISON[:20], b"HTTP/1.1 200 OK\r\nX:", b"\r\n", b"x"])
async def test_bytes_beyond_a_response_do_not_answer_the_next_request(
    clients: Clients, tmp_path: Path, first: bytes, more: bytes, method: str, over_tls: bool
) -> None:
    server_tls, client_tls = server_and_client_tls(tmp_path, "a.example") if over_tls else (None, None)
    client = clients(FixedResolver(default=("127.0.0.1",)), tls=client_tls)

    async def poisoned(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(first + more if asked.target == "/first" else response(b"right"))

    async with serving(poisoned, server_tls) as server:
        deadline_s = asyncio.get_running_loop().time() + 30
        rule = server.rule("a.example")
        url = server.url("/first", "a.example")
        async with client.open(HttpRequest(url, method), (rule,), deadline_s=deadline_s) as answer:
            assert b"poison" not in await answer.body(MEBIBYTE).whole()
        for _ in range(2):
            url = server.url("/next", "a.example")
            async with client.open(HttpRequest(url), (rule,), deadline_s=deadline_s) as answer:
                assert await answer.body(MEBIBYTE).whole() == b"right"
        assert server.connections == 2
