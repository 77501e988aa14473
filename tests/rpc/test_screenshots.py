"""core/web.screenshot with the system's Chromium, and core/desktop.screenshot on an X display, over the wire."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from tests.fakes.http_server import by_target, response, serving, silent_after
from tests.hub import OPEN_POLICY, request, running_hub
from tests.missing import need_extra
from toolhub.v1 import error_pb2

EGRESS = "egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8]}]\n"
DESKTOP_POLICY = OPEN_POLICY.replace("read:web", "read:web, read:desktop")
PAGE = b"""<!doctype html><title>Tall &amp; green</title><style>html, body {margin: 0; background: #0a0}</style>
<div style="height: 2500px"></div><script>fetch('/script-ran')</script>"""


def pixels(png: bytes) -> Iterator[tuple[int, int, int]]:
    """Of a PNG of eight bits a colour (ISO/IEC 15948): its first line, whose neighbours above are zero."""
    width, bytes_each = int.from_bytes(png[16:20], "big"), 4 if png[25] == 6 else 3
    at, packed = 8, b""
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    line = bytearray(zlib.decompress(packed)[: 1 + width * bytes_each])
    if line[0] in (1, 3, 4):  # Sub, Average and Paeth of a first line look to the left only.
        for index in range(1 + bytes_each, len(line)):
            left = line[index - bytes_each]
            line[index] = (line[index] + (left // 2 if line[0] == 3 else left)) % 256
    for index in range(1, len(line), bytes_each):
        yield line[index], line[index + 1], line[index + 2]


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder in which the hub of this test makes the browsers' profiles; other tests have theirs elsewhere."""
    with tempfile.TemporaryDirectory(prefix="shot-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def browsers(profiles: str) -> list[bytes]:
    """Command lines of what was started for pictures of this test and still runs."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            if line and profiles.encode() in line + (process / "environ").read_bytes():
                lines.append(line)
        except OSError:
            continue
    return lines


async def test_a_page_is_shown_whole_behind_its_redirect_with_its_scripts_run(
    tmp_path: Path, chromium: str, profiles: str
) -> None:
    answers = {
        "/": response(status=302, location="/tall"),
        "/tall": response(PAGE, content_type="text/html"),
        "/script-ran": response(b""),
        "/favicon.ico": response(status=404),
    }
    settings = {"browser": {"executable": chromium}}
    async with (
        serving(by_target(answers)) as site,
        running_hub(tmp_path, policy=OPEN_POLICY + EGRESS % site.port, settings=settings) as hub,
    ):
        args = {"url": site.url(), "fullPage": True, "width": 400, "height": 300}
        plan = await hub.plan("core/web.screenshot", args)
        assert "screenshots/" in plan.effects[0]
        result = await hub.invoke("core/web.screenshot", args, request_id="pictures")
        assert result.ok, result.error.message
        value = json.loads(result.result_json)
        assert (value["width"], value["height"], value["status"]) == (400, 2_500, 200)
        assert (value["url"], value["title"]) == (site.url("/tall"), "Tall & green")
        assert value["path"].startswith("screenshots/127.0.0.1-")
        png = (hub.workspace("pictures") / value["path"]).read_bytes()
        assert (len(png), hashlib.sha256(png).hexdigest()) == (value["bytes"], value["sha256"])
        assert set(pixels(png)) == {(0, 0xAA, 0)}
        page, file = result.evidence
        assert page.attributes["browser_sandbox"] in ("on", "off")
        assert file.sha256 == value["sha256"]
        assert "/script-ran" in {asked.target for asked in site.asked}
    assert browsers(profiles) == []


@pytest.mark.promise("web.browser-ends")
async def test_a_cancelled_call_leaves_no_browser_behind(tmp_path: Path, chromium: str, profiles: str) -> None:
    settings = {"browser": {"executable": chromium}}
    never = silent_after(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>never")
    async with (
        serving(never) as site,
        running_hub(tmp_path, policy=OPEN_POLICY + EGRESS % site.port, settings=settings) as hub,
    ):
        call = hub.stub.Invoke(request("core/web.screenshot", {"url": site.url()}), timeout=60)
        running = asyncio.ensure_future(call)
        await asyncio.wait_for(site.arrived.wait(), 60)
        assert any(b"toolhub-browser-" in line for line in browsers(profiles))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await running
        await asyncio.wait_for(site.gone.wait(), 60)
        async with asyncio.timeout(60):
            while browsers(profiles):  # noqa: ASYNC110 - the end of other processes is no event of ours
                await asyncio.sleep(0.05)


async def test_a_tool_without_its_browser_or_display_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    settings = {"browser": {"executable": "no-such-browser"}}
    async with running_hub(tmp_path, policy=DESKTOP_POLICY, settings=settings) as hub:
        page = await hub.invoke("core/web.screenshot", {"url": "https://example.com/"})
        desktop = await hub.invoke("core/desktop.screenshot")
        assert {page.error.kind, desktop.error.kind} == {error_pb2.ERROR_KIND_TOOL_UNAVAILABLE}
        assert "chromium" in str(page.error.details["reason"])
        assert "desktop.display" in str(desktop.error.details["reason"])


async def test_a_tool_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tools.web.fetch", "tools.web.screenshot", "tools.desktop.screenshot"):
        monkeypatch.setattr(f"toolhub_service.{module}.find_spec", lambda _: None)
    calls = {
        "web": ("core/web.fetch", {"url": "https://example.com/"}),
        "browser": ("core/web.screenshot", {"url": "https://example.com/"}),
        "desktop": ("core/desktop.screenshot", {}),
    }
    async with running_hub(tmp_path, policy=DESKTOP_POLICY) as hub:
        for extra, (tool, args) in calls.items():
            result = await hub.invoke(tool, args)
            assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
            assert f"toolhub extras install {extra}" in str(result.error.details["reason"])


async def test_the_desktop_and_a_part_of_it_are_shown(tmp_path: Path, display: str) -> None:
    need_extra("mss", "desktop")
    settings = {"desktop": {"display": display}}
    async with running_hub(tmp_path, policy=DESKTOP_POLICY, settings=settings) as hub:
        for region, size in (("full", (640, 480)), ("10,20,30,40", (30, 40))):
            result = await hub.invoke("core/desktop.screenshot", {"region": region}, request_id="desk")
            assert result.ok, result.error.message
            value = json.loads(result.result_json)
            assert (value["width"], value["height"]) == size
            png = (hub.workspace("desk") / value["path"]).read_bytes()
            assert hashlib.sha256(png).hexdigest() == value["sha256"] == result.evidence[0].sha256
            assert set(pixels(png)) == {(255, 255, 255)}
        outside = await hub.invoke("core/desktop.screenshot", {"region": "600,400,100,100"})
        assert outside.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
        assert "640 x 480" in outside.error.message
        wrong = await hub.invoke("core/desktop.screenshot", {"region": "a,b"})
        assert wrong.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID


async def test_a_display_that_is_not_there_is_named(tmp_path: Path) -> None:
    need_extra("mss", "desktop")
    async with running_hub(tmp_path, policy=DESKTOP_POLICY, settings={"desktop": {"display": ":4711"}}) as hub:
        result = await hub.invoke("core/desktop.screenshot")
        assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        assert ":4711" in result.error.message
