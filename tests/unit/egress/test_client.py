from __future__ import annotations

import asyncio
import gzip
import os
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.egress import Clients, egress_clients
from tests.fakes.http_server import (
    ALL_METHODS,
    LOOPBACK,
    RawServer,
    RecordedRequest,
    always,
    by_target,
    response,
    serving,
    silent_after,
)
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tls import server_and_client_tls
from tests.overtaken import overtaken
from tests.unit.egress.test_cancellation import descriptors, left_open
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.guards.headers import check_request_headers

NAMES = FixedResolver(default=("127.0.0.1",))


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with egress_clients() as clients:
        yield clients


@pytest.fixture
def client(clients: Clients) -> EgressClient:
    return clients(NAMES, idle_timeout_s=5.0)


async def got(
    client: EgressClient,
    request: HttpRequest | str,
    *rules: EgressRule,
    timeout_s: float = 10.0,
    max_bytes: int = 1 << 20,
) -> tuple[HttpResponse, bytes]:
    wanted = HttpRequest(request) if isinstance(request, str) else request
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    async with client.open(wanted, rules, deadline_s=deadline_s) as answer:
        return answer, await answer.body(max_bytes).whole()


async def failed(
    client: EgressClient, request: HttpRequest | str, *rules: EgressRule, timeout_s: float = 10.0
) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        await got(client, request, *rules, timeout_s=timeout_s)
    return caught.value.error


async def test_get_brings_status_headers_and_body(client: EgressClient) -> None:
    async with serving(always(response(b"hello", status=404, x_a="b"))) as server:
        answer, body = await got(client, server.url("/x?y=1"), server.rule())
        assert (answer.status, answer.header(b"x-a"), body) == (404, "b", b"hello")
        assert answer.address == "127.0.0.1"
        asked = server.asked[0]
        assert (asked.method, asked.target) == ("GET", "/x?y=1")
        assert asked.headers == {
            "host": f"127.0.0.1:{server.port}",
            "user-agent": "tool-hub/0.1.0",
            "accept": "*/*",
            "accept-encoding": "gzip",
        }


async def test_connection_is_used_again(client: EgressClient) -> None:
    async with serving(always(response(b"hello"))) as server:
        for _ in range(5):
            await got(client, server.url(), server.rule())
        await got(client, HttpRequest(server.url(), "HEAD"), server.rule())
        assert (len(server.asked), server.connections) == (6, 1)


async def test_connection_opened_by_one_rule_is_never_used_for_a_request_that_another_allows(
    client: EgressClient,
) -> None:
    async with serving(always(response(b"hello"))) as server:
        opening = server.rule("a.example", methods=frozenset({"GET"}))
        public_only = EgressRule(("a.example",), ports=frozenset({server.port}), methods=frozenset({"POST"}))
        url = server.url(host="a.example")
        await got(client, url, opening, public_only)
        error = await failed(client, HttpRequest(url, "POST"), opening, public_only)
        assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
        assert len(server.asked) == 1
        assert (await failed(client, url, EgressRule(("a.example",), ports=frozenset({server.port})))).kind is (
            ErrorKind.HTTP_DISALLOWED_HOST
        )
        assert len(server.asked) == 1


async def test_connection_that_the_server_closed_meanwhile_is_replaced(client: EgressClient) -> None:
    async with serving(always(response(b"hello"), keep=False)) as server:
        for _ in range(3):
            assert (await got(client, server.url(), server.rule()))[1] == b"hello"
        assert server.connections == 3


async def test_safe_request_goes_anew_when_a_kept_connection_turns_out_dead(client: EgressClient) -> None:
    async def once(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        if len(server.asked) == 2:
            return False
        writer.write(response(b"hello"))
        return True

    async with serving(once) as server:
        await got(client, server.url(), server.rule())
        assert (await got(client, server.url(), server.rule()))[1] == b"hello"
        assert [asked.method for asked in server.asked] == ["GET", "GET", "GET"]


@pytest.mark.promise("net.posts-never-repeated")
async def test_unsafe_request_is_never_sent_twice(client: EgressClient) -> None:
    async def once(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        if asked.method == "POST":
            return False
        writer.write(response(b"hello"))
        return True

    async with serving(once) as server:
        await got(client, server.url(), server.rule())
        error = await failed(client, HttpRequest(server.url(), "POST", body=b"x"), server.rule())
        assert (error.kind, error.is_retryable) == (ErrorKind.NETWORK_ERROR, False)
        assert [asked.method for asked in server.asked] == ["GET", "POST"]


async def test_response_that_nobody_asked_for_does_not_answer_the_next_request(client: EgressClient) -> None:
    poisoned = response(b"first") + response(b"poison")
    async with serving(always(poisoned)) as server:
        for _ in range(3):
            assert (await got(client, server.url(), server.rule()))[1] == b"first"
        assert server.connections == 3


async def test_body_left_unread_closes_the_connection(client: EgressClient) -> None:
    async with serving(always(response(b"x" * 1_000_000))) as server:
        answer, body = await got(client, server.url(), server.rule(), max_bytes=10)
        assert body == b"x" * 10
        await asyncio.wait_for(server.gone.wait(), 60)
        assert answer.status == 200


async def test_chunked_body_and_interim_responses_are_understood(client: EgressClient) -> None:
    early = b"HTTP/1.1 103 Early\r\n\r\n"
    raw = early + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving(always(raw)) as server:
        assert (await got(client, server.url(), server.rule()))[1] == b"abcde"


async def test_body_without_length_ends_with_the_connection(client: EgressClient) -> None:
    async with serving(always(b"HTTP/1.0 200 OK\r\n\r\nabc", keep=False)) as server:
        assert (await got(client, server.url(), server.rule()))[1] == b"abc"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", ErrorKind.NETWORK_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", ErrorKind.NETWORK_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-", ErrorKind.NETWORK_ERROR),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 20_000 + b"\r\n", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: 1\r\n\r\nx", ErrorKind.UPSTREAM_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", ErrorKind.UPSTREAM_ERROR),
    ],
)
async def test_broken_answer_is_a_typed_failure(client: EgressClient, raw: bytes, kind: ErrorKind) -> None:
    async with serving(always(raw, keep=False)) as server:
        assert (await failed(client, server.url(), server.rule())).kind is kind


async def test_gzip_is_undone_once(client: EgressClient) -> None:
    inner = gzip.compress(b"hello")
    two_members = response(gzip.compress(b"hel") + gzip.compress(b"lo") + b"\0\0", content_encoding="gzip")
    answers = {"/once": response(inner, content_encoding="gzip"), "/members": two_members}
    answers["/twice"] = response(gzip.compress(inner), content_encoding="x-gzip")
    answers["/cut"] = response(inner[:-3], content_encoding="gzip")
    answers["/empty"] = response(b"", content_encoding="gzip")
    async with serving(by_target(answers)) as server:
        assert (await got(client, server.url("/once"), server.rule()))[1] == b"hello"
        assert (await got(client, server.url("/members"), server.rule()))[1] == b"hello"
        assert (await got(client, server.url("/twice"), server.rule()))[1] == inner
        assert (await got(client, server.url("/empty"), server.rule()))[1] == b""
        assert (await failed(client, server.url("/cut"), server.rule())).kind is ErrorKind.UPSTREAM_ERROR


async def test_post_carries_its_body_and_length(client: EgressClient) -> None:
    async with serving(always(response(b"ok"))) as server:
        headers = check_request_headers({"Content-Type": "a/b", "User-Agent": "mine"})
        await got(client, HttpRequest(server.url(), "POST", headers, b"body"), server.rule())
        await got(client, HttpRequest(server.url(), "POST"), server.rule())
        assert [asked.body for asked in server.asked] == [b"body", b""]
        assert [asked.headers["content-length"] for asked in server.asked] == ["4", "0"]
        assert server.asked[0].headers["user-agent"] == "mine"


@pytest.mark.parametrize(
    ("status", "method", "followed_as"),
    [
        *((301, "GET", "GET"), (302, "GET", "GET"), (303, "GET", "GET"), (307, "GET", "GET"), (308, "GET", "GET")),
        *(
            (301, "POST", "GET"),
            (302, "POST", "GET"),
            (303, "POST", "GET"),
            (307, "POST", "POST"),
            (308, "POST", "POST"),
        ),
        *((303, "PUT", "GET"), (302, "PUT", "PUT"), (303, "HEAD", "HEAD"), (302, "HEAD", "HEAD")),
    ],
)
async def test_redirect_keeps_or_rewrites_the_method(
    client: EgressClient, status: int, method: str, followed_as: str
) -> None:
    answers = {"/a": response(status=status, location="/b"), "/b": response()}
    async with serving(by_target(answers)) as server:
        body = b"" if method in {"GET", "HEAD"} else b"body"
        headers = (("content-type", "text/plain"), ("authorization", "s")) if body else (("authorization", "s"),)
        answer, _ = await got(client, HttpRequest(server.url("/a"), method, headers, body), server.rule())
        assert [str(url) for url in answer.redirects] == [server.url("/a")]
        second = server.asked[1]
        assert second.method == answer.method == followed_as
        assert second.body == (body if followed_as == method else b"")
        assert ("content-type" in second.headers) is (bool(body) and followed_as == method)
        assert second.headers["authorization"] == "s"
        assert server.connections == 1


@pytest.mark.promise("secrets.headers-stay-home")
async def test_credentials_do_not_follow_to_another_origin(client: EgressClient) -> None:
    secret = {"Authorization": "s", "Cookie": "s", "X-Api-Key": "s", "X-Custom": "s", "Accept-Language": "de"}
    answers: dict[str, bytes] = {"/there": response()}
    async with serving(by_target(answers)) as first, serving(by_target(answers)) as second:
        answers["/"] = response(status=302, location=second.url("/there", "b.example"))
        request = HttpRequest(first.url(host="a.example"), headers=check_request_headers(secret))
        await got(client, request, first.rule("a.example"), second.rule("b.example"))
        sent = second.asked[0].headers
        assert sent["accept-language"] == "de"
        assert not {"authorization", "cookie", "x-api-key", "x-custom"} & sent.keys()


async def test_another_port_is_another_origin(client: EgressClient) -> None:
    answers: dict[str, bytes] = {"/there": response()}
    async with serving(by_target(answers)) as first, serving(by_target(answers)) as second:
        answers["/"] = response(status=307, location=second.url("/there"))
        request = HttpRequest(first.url(), headers=(("authorization", "s"),))
        await got(client, request, first.rule(), second.rule())
        assert "authorization" not in second.asked[0].headers


async def test_at_most_five_redirects_are_followed(client: EgressClient) -> None:
    answers = {f"/{number}": response(status=302, location=f"/{number + 1}") for number in range(10)}
    answers["/5"] = response(b"there")
    async with serving(by_target(answers)) as server:
        assert (await got(client, server.url("/0"), server.rule()))[1] == b"there"
        answers["/5"] = response(status=302, location="/0")
        error = await failed(client, server.url("/0"), server.rule())
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)


async def test_redirect_is_followed_without_waiting_for_its_body(client: EgressClient) -> None:
    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        waiting = b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 100\r\n\r\nabc"
        writer.write(waiting if asked.target == "/" else response(b"there"))

    async with serving(answer) as server:
        assert (await got(client, server.url(), server.rule()))[1] == b"there"
        assert server.connections == 2


async def test_redirect_without_location_is_a_result(client: EgressClient) -> None:
    async with serving(always(response(status=302))) as server:
        assert (await got(client, server.url(), server.rule()))[0].status == 302


async def test_cookie_is_shown_to_the_caller_and_never_sent_back(client: EgressClient) -> None:
    async with serving(always(response(b"hello", set_cookie="session=secret; Path=/"))) as server:
        answer, _ = await got(client, server.url(), server.rule())
        assert answer.header(b"set-cookie") == "session=secret; Path=/"
        await got(client, server.url(), server.rule())
        assert all("cookie" not in asked.headers for asked in server.asked)


@pytest.mark.parametrize("location", ["http://[::1", "http://a b/", "//:x", "http://a.example:99999/", "\x7f"])
async def test_location_that_is_no_url_is_a_typed_refusal(client: EgressClient, location: str) -> None:
    async with serving(always(response(status=302, location=location))) as server:
        error = await failed(client, server.url(), server.rule())
        assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST


async def test_silent_server_meets_the_deadline(client: EgressClient) -> None:
    async with serving(silent_after(b"")) as server:

        async def late(method: str, timeout_s: float) -> ToolError:
            return await failed(client, HttpRequest(server.url(), method), server.rule(), timeout_s=timeout_s)

        error = await overtaken(partial(late, "GET"), lambda _: bool(server.asked))
        assert (error.kind, error.is_retryable) == (ErrorKind.HTTP_TIMEOUT, True)
        await asyncio.wait_for(server.gone.wait(), 60)
        post = await overtaken(partial(late, "POST"), lambda _: server.asked[-1].method == "POST")
        assert (post.kind, post.is_retryable) == (ErrorKind.HTTP_TIMEOUT, False)


async def test_server_that_falls_silent_meets_the_idle_timeout(clients: Clients) -> None:
    async with serving(silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")) as server:

        async def late(idle_timeout_s: float) -> ToolError:
            client = clients(NAMES, idle_timeout_s=idle_timeout_s)
            return await failed(client, server.url(), server.rule())

        error = await overtaken(late, lambda error: "stopped sending" in error.message, first_s=0.05)
        assert error.kind is ErrorKind.HTTP_TIMEOUT


async def test_timeout_of_the_reader_itself_is_not_mistaken_for_the_server(client: EgressClient) -> None:
    async with serving(always(response())) as server:
        with pytest.raises(TimeoutError):
            async with client.open(HttpRequest(server.url()), (server.rule(),), deadline_s=float("inf")):
                raise TimeoutError


async def test_unreachable_and_unknown_hosts_are_network_errors(clients: Clients) -> None:
    client = clients(FixedResolver())
    async with serving(always(response())) as server:
        port, rule = server.port, server.rule("127.0.0.1", "nowhere.example")
    for url in (f"http://127.0.0.1:{port}/", f"http://nowhere.example:{port}/"):
        error = await failed(client, url, rule)
        assert (error.kind, error.is_retryable) == (ErrorKind.NETWORK_ERROR, True)


async def test_cancelled_call_closes_its_connection(client: EgressClient) -> None:
    begun = asyncio.Event()

    async def begin(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        begun.set()
        await asked.reader.read()
        return False

    async with serving(begin) as server:
        call = asyncio.create_task(got(client, server.url(), server.rule()))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.gone.wait(), 60)


async def test_closed_client_keeps_no_connection(client: EgressClient) -> None:
    async with serving(always(response())) as server:
        await got(client, server.url(), server.rule())
        assert not server.gone.is_set()
        await client.aclose()
        await asyncio.wait_for(server.gone.wait(), 60)


async def test_no_descriptor_is_left_behind(clients: Clients) -> None:
    client, hasty = clients(NAMES), clients(NAMES, idle_timeout_s=0.05)
    answers = {
        "/": response(b"x"),
        "/broken": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        "/bad": b"what\r\n\r\n",
    }
    answers["/away"] = response(status=302, location="http://10.0.0.1/")
    async with serving(by_target(answers)) as server:
        before = descriptors()
        for _ in range(10):
            await got(client, server.url(), server.rule())
            for target in ("/broken", "/bad", "/away"):
                await failed(hasty, server.url(target), server.rule())
        await client.aclose()
        await hasty.aclose()
    assert await left_open(before) <= before


async def test_many_calls_at_once_each_get_their_own_answer(client: EgressClient) -> None:
    async def echo(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(response(asked.target.encode()))

    async with serving(echo) as server:
        targets = [f"/{number}" for number in range(100)]
        answers = await asyncio.gather(*(got(client, server.url(target), server.rule()) for target in targets))
        assert [body.decode() for _, body in answers] == targets


async def test_large_body_arrives_whole_under_backpressure(client: EgressClient) -> None:
    body = os.urandom(1 << 20) * 4
    async with serving(always(response(body))) as server:
        assert (await got(client, server.url(), server.rule(), max_bytes=1 << 23))[1] == body


async def test_https_verifies_the_name_and_speaks_tls(tmp_path: Path, clients: Clients) -> None:
    server_tls, client_tls = server_and_client_tls(tmp_path, "secure.example")
    client = clients(NAMES, tls=client_tls)
    async with serving(always(response(b"x" * 600_000)), server_tls) as server:
        rule = server.rule("secure.example", "other.example")
        for _ in range(2):
            assert len((await got(client, server.url(host="secure.example"), rule))[1]) == 600_000
        assert server.connections == 1
        error = await failed(client, server.url(host="other.example"), rule)
        assert (error.kind, error.is_retryable) == (ErrorKind.NETWORK_ERROR, False)
        assert "certificate" in error.message
        distrusting = clients(NAMES, tls=ssl.create_default_context())
        assert (await failed(distrusting, server.url(host="secure.example"), rule)).kind is ErrorKind.NETWORK_ERROR
        await client.aclose()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_https_never_redirects_to_http(tmp_path: Path, clients: Clients) -> None:
    server_tls, client_tls = server_and_client_tls(tmp_path, "secure.example")
    client = clients(NAMES, tls=client_tls)
    async with serving(always(response(b"plain"))) as plain:
        downgrade = always(response(status=302, location=plain.url(host="secure.example")))
        async with serving(downgrade, server_tls) as secure:
            rules = (plain.rule("secure.example"), secure.rule("secure.example"))
            error = await failed(client, secure.url(host="secure.example"), *rules)
            assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
            assert "https to http" in error.message
            assert plain.connections == 0


def test_rule_of_the_fake_server_is_not_wider_than_loopback() -> None:
    assert RawServer(port=1).rule() == EgressRule(
        ("127.0.0.1",), ports=frozenset({1}), methods=ALL_METHODS, cidrs=LOOPBACK
    )
