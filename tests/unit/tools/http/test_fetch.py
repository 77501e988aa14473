"""core/http.fetchText, fetchJson, head and request against a real server."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.http_server import always, response, serving
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tool_context import egress_context
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, Upstream
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.secrets import Redactor
from toolhub_service.tools.http.exchange import HttpServices
from toolhub_service.tools.http.tools import HttpFetchJson, HttpFetchText, HttpHead, HttpRequestTool


@pytest.fixture
async def services() -> AsyncIterator[HttpServices]:
    client = EgressClient(GuardedTransport(FixedResolver()))
    yield HttpServices(client, Redactor(["known-secret-value"]))
    await client.aclose()


async def text_from(services: HttpServices, raw: bytes, **args: Any) -> HttpFetchText.Out:
    async with serving(always(raw)) as server:
        return await HttpFetchText(services).run(
            HttpFetchText.In(url=server.url(), **args), egress_context(server.rule())
        )


async def json_error(services: HttpServices, raw: bytes, **args: Any) -> ToolError:
    async with serving(always(raw)) as server:
        with pytest.raises(ToolFailure) as caught:
            await HttpFetchJson(services).run(HttpFetchJson.In(url=server.url(), **args), egress_context(server.rule()))
    return caught.value.error


async def test_text_comes_with_status_and_headers_for_any_status(services: HttpServices) -> None:
    out = await text_from(services, response("grüß".encode(), status=503, content_type="text/plain"))
    assert (out.status, out.text, out.bytes) == (503, "grüß", 6)
    assert out.headers["content-type"] == "text/plain"


@pytest.mark.parametrize(
    ("content_type", "data", "text"),
    [
        ("text/html; charset=ISO-8859-1", b"caf\xe9", "café"),
        ('text/html; charset="windows-1252"', b"\x80", "€"),
        ("text/html; x=y; Charset=utf-16-le", "hi".encode("utf-16-le"), "hi"),
        ("text/html", b"caf\xe9", "caf\ufffd"),
        ("text/html; charset=zlib", b"abc", "abc"),
        ("text/html; charset=unicode_escape", b"\\u0041", "\\u0041"),
        ("text/html; charset=nonsense", "ä".encode(), "ä"),
        ("text/html", b"\xef\xbb\xbfabc", "abc"),
        ("text/html; charset=iso-8859-1", "\ufeffgrün".encode(), "grün"),
        ("text/plain", "\ufeffhi".encode("utf-16-le"), "hi"),
        ("text/html", '<meta charset="gbk">中文'.encode("gbk"), '<meta charset="gbk">中文'),
        (
            "text/html",
            '<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">日本'.encode("cp932"),
            '<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">日本',
        ),
        ("text/html; charset=utf-8", "<meta charset=gbk>ä".encode(), "<meta charset=gbk>ä"),
        ("text/html", "<meta charset=utf-16>ä".encode(), "<meta charset=utf-16>ä"),
        (
            "application/xml",
            '<?xml version="1.0" encoding="koi8-r"?>да'.encode("koi8-r"),
            '<?xml version="1.0" encoding="koi8-r"?>да',
        ),
        ("text/plain", b"<meta charset=gbk>\xd6\xd0", "<meta charset=gbk>\ufffd\ufffd"),
    ],
)
async def test_text_is_decoded_by_the_declared_charset(
    services: HttpServices, content_type: str, data: bytes, text: str
) -> None:
    assert (await text_from(services, response(data, content_type=content_type))).text == text


async def test_a_long_text_is_cut_marked_and_reported(services: HttpServices) -> None:
    body = "ä" * 2_000
    async with serving(always(response(body.encode()))) as server:
        context = egress_context(server.rule())
        out = await HttpFetchText(services).run(HttpFetchText.In(url=server.url(), max_bytes=1_025), context)
    assert out.text.startswith("ä" * 512 + "\n… [cut: the first 1025 of 4000 bytes")
    assert out.bytes == 1_025
    assert context.truncated
    assert out.truncated
    assert "none of the rest was kept: raise maxBytes, or use core/http.downloadFile" in context.evidence[-1].summary
    assert context.evidence[0].sha256 == hashlib.sha256(body.encode()[:1_025]).hexdigest()


async def test_sandbox_bounds_what_the_argument_asks_for(services: HttpServices) -> None:
    async with serving(always(response(b"x" * 5_000))) as server:
        context = egress_context(server.rule(), sandbox=Sandbox(max_http_bytes=100))
        out = await HttpFetchText(services).run(HttpFetchText.In(url=server.url()), context)
        assert (out.bytes, out.truncated) == (100, True)
        assert out.text.endswith("; the policy limits a response to 100 bytes, so use core/http.downloadFile]")


async def test_gzip_is_cut_by_its_inflated_size(services: HttpServices) -> None:
    out = await text_from(services, response(gzip.compress(b"x" * 9_999), content_encoding="gzip"), max_bytes=2_000)
    assert out.bytes == 2_000
    assert "of more bytes" in out.text


async def test_post_sends_the_body(services: HttpServices) -> None:
    async with serving(always(response())) as server:
        tool = HttpFetchText(services)
        await tool.run(tool.In(url=server.url(), method="POST", body="grüß"), egress_context(server.rule()))
        assert server.asked[0].body.decode() == "grüß"
        assert server.asked[0].headers["content-type"] == "text/plain; charset=utf-8"
        with pytest.raises(ToolFailure) as caught:
            await tool.run(tool.In(url=server.url(), body="x"), egress_context(server.rule()))
        assert caught.value.error.kind is ErrorKind.INVALID_INPUT


async def test_method_without_a_grant_never_reaches_the_server(services: HttpServices) -> None:
    async with serving(always(response())) as server:
        tool, rule = HttpFetchText(services), server.rule(methods=frozenset({"GET"}))
        with pytest.raises(ToolFailure) as caught:
            await tool.run(tool.In(url=server.url(), method="POST"), egress_context(rule))
        assert caught.value.error.kind is ErrorKind.HTTP_DISALLOWED_HOST
        assert caught.value.error.details["allowed_methods"] == ["GET"]
        assert server.connections == 0


async def test_json_is_read_exactly(services: HttpServices) -> None:
    async with serving(always(response(b'{"a": [1, 12345678901234567890123]}', content_type="text/plain"))) as server:
        tool = HttpFetchJson(services)
        out = await tool.run(tool.In(url=server.url()), egress_context(server.rule()))
        assert out.json == {"a": [1, 12345678901234567890123]}
        assert server.asked[0].headers["accept"] == "application/json"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":"bad \\ud83d half"}', {"a": "bad \ufffd half"}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"[NaN]", [None]),
        (b'"caf\xe9"', "caf\ufffd"),
        (b'"' + b"x" * 2_000_000 + b'\\ud83d"', "x" * 2_000_000 + "\ufffd"),
    ],
)
async def test_json_that_strict_parsers_refuse_is_repaired_and_evidence_says_so(
    services: HttpServices, body: bytes, value: object
) -> None:
    async with serving(always(response(body))) as server:
        tool, context = HttpFetchJson(services), egress_context(server.rule())
        out = await tool.run(tool.In(url=server.url()), context)
    assert out.json == value
    assert context.evidence[-1].attributes["repaired"]
    assert context.evidence[-1].ref == "127.0.0.1"


@pytest.mark.parametrize("body", [b"<html>no</html>", b"{a:1}", b"[1,]", b"", b"\xff", b"[" * 5_000])
async def test_a_body_that_is_no_json_is_an_upstream_error_with_an_excerpt(services: HttpServices, body: bytes) -> None:
    error = await json_error(services, response(body))
    assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
    assert error.upstream is not None
    assert error.upstream.status == 200
    assert error.upstream.excerpt == body.decode(errors="replace")[:2_000]


@pytest.mark.parametrize(("status", "retryable"), [(404, False), (401, False), (304, False), (429, True), (500, True)])
async def test_error_status_is_an_upstream_error_with_an_excerpt(
    services: HttpServices, status: int, retryable: bool
) -> None:
    body = b"" if status == 304 else b"reason: known-secret-value " + b"x" * 50_000
    error = await json_error(services, response(body, status=status, retry_after="7"))
    assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, retryable)
    assert error.retry_after_s == (7.0 if retryable else None)
    assert error.upstream is not None
    assert error.upstream.status == status
    assert len(error.upstream.excerpt) <= 2_000
    assert "known-secret-value" not in error.upstream.excerpt


@pytest.mark.parametrize(
    ("method", "status", "retryable"),
    [("GET", 502, True), ("POST", 500, False), ("POST", 502, False), ("POST", 503, True), ("POST", 429, True)],
)
async def test_a_post_is_sent_again_only_after_a_status_that_excludes_processing(
    services: HttpServices, method: str, status: int, retryable: bool
) -> None:
    error = await json_error(services, response(b"{}", status=status), method=method)
    assert error.is_retryable is retryable
    assert ("check that before you send it again" in error.message) is not retryable


async def test_an_error_status_is_reported_even_when_its_body_cannot_be_read(services: HttpServices) -> None:
    error = await json_error(services, response(b"x", status=403, content_encoding="br"))
    assert error.upstream == Upstream(403, "")


async def test_json_is_never_cut(services: HttpServices) -> None:
    error = await json_error(services, response(b'"' + b"x" * 5_000 + b'"'), max_bytes=1_024)
    assert error.kind is ErrorKind.HTTP_TOO_LARGE
    assert error.details["max_bytes"] == 1_024


async def test_head_brings_headers_and_no_body(services: HttpServices) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: abc\r\nSet-Cookie: a=b\r\n\r\n"
    async with serving(always(raw)) as server:
        for _ in range(2):
            out = await HttpHead(services).run(HttpHead.In(url=server.url()), egress_context(server.rule()))
            assert out.headers == {"content-length": "1000000", "etag": "abc", "set-cookie": "***"}
        assert [asked.method for asked in server.asked] == ["HEAD", "HEAD"]
        assert server.connections == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_request_sends_json_or_text(services: HttpServices, method: Any) -> None:
    async with serving(always(response(b"done", status=201))) as server:
        tool = HttpRequestTool(services)
        args = tool.In(url=server.url(), method=method, body={"a": [1]})
        out = await tool.run(args, egress_context(server.rule()))
        await tool.run(tool.In(url=server.url(), method=method, body="plain"), egress_context(server.rule()))
        assert (out.status, out.body) == (201, "done")
        assert [asked.body for asked in server.asked] == [b'{"a":[1]}', b"plain"]
        assert server.asked[0].headers["content-type"] == "application/json"
        assert {asked.method for asked in server.asked} == {method}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_request_without_a_body_stays_without_one(services: HttpServices, method: Any) -> None:
    async with serving(always(response())) as server:
        tool = HttpRequestTool(services)
        await tool.run(tool.In(url=server.url(), method=method), egress_context(server.rule()))
        assert "content-length" not in server.asked[0].headers
        with pytest.raises(ToolFailure):
            await tool.run(tool.In(url=server.url(), method=method, body=[]), egress_context(server.rule()))
