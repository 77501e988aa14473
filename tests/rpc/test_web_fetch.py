"""core/web.fetch over the wire, against a site on loopback whose pages are broken, huge, hostile or in old charsets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, response, serving
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.missing import need_extra
from tests.overtaken import overtaken
from toolhub.v1 import error_pb2
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.sandbox.process import run_process
from toolhub_service.tools.web import page_reader
from toolhub_service.tools.web.page_reader import PageReader, RawPage

need_extra("trafilatura", "web")

EGRESS = "egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8]}]\n"
HTML = "text/html; charset=utf-8"
ARTICLE = """<!doctype html><html><head><title>On &amp; off</title><script>var secret = 1;</script></head><body>
<nav><a href="/home">Home</a><a href="/about">About us</a></nav>
<article><h1>Why relays click</h1>
<p>A relay is a switch that is worked by an electromagnet, and the click is the armature as it meets the core.</p>
<p>The <a href="../coil?x=1#top">coil</a> draws current as long as the contact is to be held, which warms it up.</p>
<ul><li>Solid state relays do not click.</li><li>They leak a little instead of that.</li></ul>
</article><footer>Imprint</footer></body></html>"""

GREETINGS = {
    "gbk": ("你好，世界。这一页没有说明它用的是哪一种编码，只有内容本身。", "gb2312"),
    "shift_jis": ("こんにちは世界。このページの文字コードを確かめる文章です。", "Shift_JIS"),
    "cp1251": ("Привет, мир. На этой странице проверяется кодировка текста.", "windows-1251"),
    "utf-8": ("Grüße, κόσμε. Diese Seite sagt, in welchem Zeichensatz sie steht.", "utf-8"),
}


def page_of(text: str, meta: str = "") -> str:
    return f"<html><head>{meta}<title>{text[:5]}</title></head><body><p>{text}</p></body></html>"


def charset_pages() -> dict[str, tuple[bytes, str, str]]:
    """By target: the body, its Content-Type, and the text that it holds."""
    pages = {}
    for codec, (text, label) in GREETINGS.items():
        meta = f'<meta http-equiv="Content-Type" content="text/html; charset={label}">'
        pages[f"/{codec}/header"] = (page_of(text).encode(codec), f"text/html; charset={label}", text)
        pages[f"/{codec}/meta"] = (page_of(text, meta).encode(codec), "text/html", text)
        wrong = "iso-8859-1" if codec == "utf-8" else "utf-8"
        pages[f"/{codec}/wrong-header"] = (page_of(text, meta).encode(codec), f"text/html; charset={wrong}", text)
        long = text * 4
        pages[f"/{codec}/nothing"] = (page_of(long).encode(codec), "text/html", long)
    return pages


def paragraphs(size_bytes: int) -> bytes:
    one = "<p>Paragraph %d with a few words of its own, and <a href='/x%d'>a link</a> to follow.</p>"
    page, number = ["<html><title>Long</title><body><article>"], 0
    while number * 80 < size_bytes:
        page.append(one % (number, number))
        number += 1
    return "".join(page).encode()


HOSTILE = {
    "deep": b"<div>" * 100_000 + b"at the bottom",
    "open-tags": b"<a href=" * 3_000,
    "comments": b"<!--" * 3_000,
    "ampersands": b"&" * 500_000,
    "tables": b"<table><tr><td>" * 20_000 + b"in the cell",
    "entities": b"<!DOCTYPE html [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;'>]><p>&b;&b;</p>",
    "attributes": b"<p " + b"a=1 " * 100_000 + b">attributes</p>",
    "no-text": b"<script>" + b"x" * 100_000,
}
BROKEN = b"<html><body><p>one<p>two<b><i>three</b></i><table><td>four<li>five</body><p>six<!-- never closed"


@asynccontextmanager
async def site(home: Path, answers: dict[str, bytes], more: str = "") -> AsyncIterator[tuple[RunningHub, RawServer]]:
    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        target = asked.target.partition("?")[0]
        if target == "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>")
            await writer.drain()
            await asked.reader.read()
            return False
        writer.write(answers.get(target) or response(b"nothing here", status=404, content_type="text/plain"))
        await writer.drain()
        return True

    async with (
        serving(answer) as server,
        running_hub(home, policy=OPEN_POLICY + EGRESS % server.port + more) as hub,
    ):
        yield hub, server


async def fetch(hub: RunningHub, **args: Any) -> Any:
    return await hub.value("core/web.fetch", args)


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ('<meta http-equiv="refresh" content="0; url=/next?a=1&amp;b=2">', "/next?a=1&b=2"),
        ("<META CONTENT='5;URL=next.html' HTTP-EQUIV=Refresh>", "/next.html"),
        ('<meta http-equiv="refresh" content="30">', ""),
        ('<meta name="description" content="0; url=/next">', ""),
    ],
)
async def test_a_page_that_sends_its_reader_on_names_where_to(tmp_path: Path, tag: str, path: str) -> None:
    answers = {"/moved": response(f"<html><head>{tag}</head><body>Moved.</body></html>".encode(), content_type=HTML)}
    async with site(tmp_path, answers) as (hub, server):
        (page,) = (await fetch(hub, url=server.url("/moved")))["pages"]
        assert page.get("refresh", "") == (server.url(path) if path else "")


@pytest.mark.promise("web.untrusted")
async def test_a_page_behind_a_redirect_is_text_without_menus_and_names_its_origin(tmp_path: Path) -> None:
    answers = {
        "/old": response(status=301, location="/news/relays"),
        "/news/relays": response(ARTICLE.encode(), content_type=HTML),
    }
    async with site(tmp_path, answers) as (hub, server):
        result = await hub.invoke("core/web.fetch", {"url": server.url("/old"), "links": True}, purpose="")
        value = json.loads(result.result_json)
        (page,) = value["pages"]
        assert (page["url"], page["title"], page["truncated"]) == (server.url("/news/relays"), "On & off", False)
        assert "the click is the armature" in page["text"]
        assert "secret" not in page["text"]
        assert "Home" not in page["text"]
        assert {"url": server.url("/coil?x=1#top"), "text": "coil"} in page["links"]
        assert value["untrusted"] is True
        exchange, text = result.evidence
        assert exchange.attributes["redirects"] == server.url("/old")
        assert (text.attributes["untrusted"], text.attributes["extractor"]) == ("true", "trafilatura")
        assert text.sha256

        marked = await fetch(hub, url=server.url("/news/relays"), extractMode="markdown")
        assert f"[coil]({server.url('/coil?x=1')}" in marked["pages"][0]["text"]
        assert "- Solid state relays" in marked["pages"][0]["text"]
        cut = await hub.invoke("core/web.fetch", {"url": server.url("/news/relays"), "maxChars": 100})
        (page,) = json.loads(cut.result_json)["pages"]
        assert (len(page["text"]), page["truncated"], cut.truncated) == (100, True, True)
        nothing = await hub.invoke("core/web.fetch", {})
        assert nothing.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT


async def test_charsets_come_from_the_header_the_page_or_the_bytes(tmp_path: Path) -> None:
    pages = charset_pages()
    answers = {target: response(body, content_type=kind) for target, (body, kind, _) in pages.items()}
    async with site(tmp_path, answers) as (hub, server):
        value = await fetch(hub, urls=[server.url(target) for target in pages])
        read = {target: page["text"] for target, page in zip(pages, value["pages"], strict=True)}
        assert read == {target: text for target, (_, _, text) in pages.items()}


@pytest.mark.promise("web.hostile-pages")
async def test_hostile_and_huge_pages_end_in_time_and_delay_nobody(tmp_path: Path) -> None:
    pages = {**HOSTILE, "broken": BROKEN, "5MB": paragraphs(5_000_000)}
    answers = {f"/{name}": response(body, content_type=HTML) for name, body in pages.items()}
    async with site(tmp_path, answers) as (hub, server):
        fetching = asyncio.ensure_future(fetch(hub, urls=[server.url(target) for target in answers], links=True))
        longest_s = 0.0
        while not fetching.done():
            before_s = time.monotonic()
            await hub.value("core/util.time.now")
            longest_s = max(longest_s, time.monotonic() - before_s)
            await asyncio.wait({fetching}, timeout=0.1)
        read = dict(zip(pages, (await fetching)["pages"], strict=True))
        assert {name: page["error"] for name, page in read.items() if "error" in page} == {}
        assert "at the bottom" in read["deep"]["text"]
        assert "in the cell" in read["tables"]["text"]
        assert "attributes" in read["attributes"]["text"]
        assert read["no-text"]["text"] == ""
        assert all(word in read["broken"]["text"] for word in ("one", "two", "three", "four", "five"))
        assert (len(read["5MB"]["text"]), read["5MB"]["truncated"]) == (50_000, True)
        assert len(read["5MB"]["links"]) == 200
        assert longest_s < 10.0, "another call waited for a parser"


async def test_each_of_several_pages_has_its_own_error(tmp_path: Path) -> None:
    answers = {
        "/good": response(ARTICLE.encode(), content_type=HTML),
        "/json": response('{"naïve": true}'.encode(), content_type="application/json"),
        "/untyped": response(b"<html><title>U</title><p>No type at all.</p></html>"),
        "/image": response(b"\x89PNG\r\n\x1a\n\0\0", content_type="image/png"),
        "/lie": response(b"\x7fELF\0\0\0", content_type="text/plain"),
        "/away": response(status=302, location="http://169.254.169.254/latest/meta-data/"),
    }
    asked = [*answers, "/missing", "/endless"]
    async with site(tmp_path, answers) as (hub, server):
        value = await fetch(hub, urls=[server.url(target) for target in asked], timeoutMs=1_000)
        pages = dict(zip(asked, value["pages"], strict=True))
        errors = {target: page["error"]["kind"] for target, page in pages.items() if "error" in page}
        assert errors == {
            "/image": "INVALID_INPUT",
            "/lie": "INVALID_INPUT",
            "/away": "HTTP_DISALLOWED_HOST",
            "/missing": "UPSTREAM_ERROR",
            "/endless": "HTTP_TIMEOUT",
        }
        assert "core/http.downloadFile" in pages["/image"]["error"]["message"]
        assert pages["/json"]["text"] == '{"naïve": true}'
        assert pages["/untyped"]["title"] == "U"
        alone = await hub.invoke("core/web.fetch", {"url": server.url("/missing")})
        assert (alone.error.kind, alone.error.upstream.status) == (error_pb2.ERROR_KIND_UPSTREAM_ERROR, 404)


async def test_a_page_larger_than_policy_allows_is_read_as_far_as_that(tmp_path: Path) -> None:
    answers = {"/long": response(paragraphs(100_000), content_type=HTML)}
    async with site(tmp_path, answers, "sandbox: {max_http_bytes: 2000}\n") as (hub, server):
        (page,) = (await fetch(hub, url=server.url("/long")))["pages"]
        assert page["truncated"] is True
        assert "Paragraph 3" in page["text"]
        assert "Paragraph 99" not in page["text"]


# The processes that read pages.


def raw(data: bytes) -> RawPage:
    return RawPage("http://example.com/", data, "", True, False, False, False, 1_000)


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def read(reader: PageReader, data: bytes) -> str:
    return (await reader.read(raw(data), deadline_s=asyncio.get_running_loop().time() + 60)).text


@pytest.mark.promise("web.hostile-pages")
async def test_a_reader_that_hangs_or_dies_is_replaced_and_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "PAGES_A_WORKER", 3)
    reader = PageReader(size=1, page_s=60.0)
    try:
        assert await read(reader, b"<p>first page</p>") == "first page"
        (first,) = reader.pids
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(ToolFailure) as caught:
            await reader.read(raw(b"<p>never</p>"), deadline_s=asyncio.get_running_loop().time() + 0.1)
        assert caught.value.error.kind is ErrorKind.EXECUTION_ERROR
        assert await read(reader, b"<p>second page</p>") == "second page"
        (second,) = reader.pids
        os.kill(second, signal.SIGKILL)
        assert await read(reader, b"<p>third page</p>") == "third page"
        assert await read(reader, b"<p>again</p>") == "again"
        (third,) = reader.pids
        assert len({first, second, third}) == 3
        await read(reader, b"<p>the last of its three</p>")
        assert reader.pids == ()
    finally:
        await reader.close()
    assert not any(runs(pid) for pid in (first, second, third))


async def test_a_cancelled_call_ends_the_process_that_reads_its_page() -> None:
    reader = PageReader(size=1)
    await read(reader, b"<p>warm</p>")
    (pid,) = reader.pids
    os.kill(pid, signal.SIGSTOP)
    reading = asyncio.ensure_future(read(reader, b"<p>never</p>"))
    for _ in range(10):  # Turns of the loop, until the process has been taken and asked
        await asyncio.sleep(0)
    assert reader.pids == ()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await reader.close()
    assert not runs(pid)


ATTEMPTS = """
import socket
for what in (lambda: open("/etc/passwd").read(), lambda: open("/tmp/page-reader", "w"),
             lambda: socket.create_connection(("127.0.0.1", %d), 5)):
    try:
        what()
        print("could")
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(landlock_abi() < 4, reason="this kernel has no Landlock ABI 4: Linux 6.7 has it")
async def test_a_reader_opens_no_file_and_no_connection() -> None:
    async with serving(lambda *_: asyncio.sleep(0)) as forbidden:
        argv = (sys.executable, "-I", "-c", ATTEMPTS % forbidden.port)
        program = Program(argv, {}, "/", confine=page_reader.confine_parser)

        async def attempt(timeout_s: float) -> str:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            done = await run_process(program, deadline_s=deadline_s, keep_bytes=1_000, on_output=lambda *_: None)
            return done.stdout.text(1_000)[0]

        assert (await overtaken(attempt, lambda text: text.count("\n") == 3, first_s=10)).split() == ["refused"] * 3
        assert forbidden.connections == 0
