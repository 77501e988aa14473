"""Addresses inside, asked for through core/web.fetch by every spelling, name and redirect: what listens there hears
nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.corpora import load_json, load_lines
from tests.fakes.http_server import RawServer, RecordedRequest, always, response, serving
from tests.fakes.resolvers import FixedResolver
from tests.hub import RunningHub, running_hub
from tests.missing import need_extra
from toolhub.v1 import error_pb2

need_extra("trafilatura", "web")

# Anything public, and on loopback the one port of the site.
POLICY = """
extends: none
grants: [{principals: [local], capabilities: [network, "read:web"]}]
egress:
  - {hosts: ["127.0.0.1"], ports: [%d], cidrs: [127.0.0.0/8]}
  - {hosts: ["*"], schemes: [http, https]}
  - {hosts: ["*"], schemes: [http, https], ports: [%d]}
"""
LOOPBACKS = (
    "127.0.0.1 localhost LOCALHOST localhost. 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 017700000001 0 "
    "0.0.0.0 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] "
    "[0:0:0:0:0:0:0:1] [::1%25lo] 127.0.0.1. 127.127.127.127 127.0.0.1%00 127.0.0.1%2f 127。0。0。1 ①②⑦.⓪.⓪.① "
    "127.0.0.1@127.0.0.1 example.com@127.0.0.1 inside.example mixed.example"
).split()
REFUSALS = frozenset({"HTTP_DISALLOWED_HOST", "INVALID_INPUT"})


def spellings(port: int) -> list[str]:
    """URLs that lead, or would lead, to a port of loopback, and those of published lists."""
    urls = [f"http://{host}:{port}/" for host in LOOPBACKS]
    urls += [f"{scheme}://127.0.0.1:{port}/" for scheme in ("https", "ftp", "gopher", "dict", "ws", "view-source:http")]
    urls += ["file:///etc/passwd", "data:text/html,x", "javascript:alert(1)", "about:blank", "\\\\127.0.0.1\\c$"]
    urls += load_json("ssrf/patt_ssrf_urls.json.gz") + load_lines("ssrf/seclists_SSRF_hacktricks.txt.gz")
    return [url.encode("utf-8", "replace").decode() for url in urls if url]


@asynccontextmanager
async def hub_and_site(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RunningHub, RawServer, RawServer]]:
    """A hub, a site that redirects to what its query says, and what must not be reached."""
    names = {"inside.example": ("127.0.0.1",), "mixed.example": ("93.184.216.34", "127.0.0.1")}
    resolver = FixedResolver(names, default=("127.0.0.1",))
    monkeypatch.setattr("toolhub_service.egress.resolver.SystemResolver.resolve", lambda _, *at: resolver.resolve(*at))

    async def redirect(asked: RecordedRequest, writer: Any) -> None:
        writer.write(response(status=302, location=unquote(asked.target.partition("?")[2], errors="replace")))
        await writer.drain()

    async with serving(redirect) as site, serving(always(response(b"inside"))) as forbidden:
        policy = POLICY % (site.port, forbidden.port)
        async with running_hub(home, policy=policy) as hub:
            yield hub, site, forbidden


@pytest.mark.promise("net.redirects-checked")
async def test_no_spelling_and_no_redirect_of_it_reaches_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_and_site(tmp_path, monkeypatch) as (hub, site, forbidden):
        urls = spellings(forbidden.port)
        for url in urls:
            result = await hub.invoke("core/web.fetch", {"url": url}, budget={"max_retries": 0})
            kind = error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")
            assert kind in REFUSALS | {"INPUT_SCHEMA_INVALID"}, url

        # A reference without a scheme leads back to the site: too many redirects, UPSTREAM_ERROR.
        redirects = [site.url(f"/?{quote(url, safe='')}") for url in urls if "\r" not in url and "\n" not in url]
        for at in range(0, len(redirects), 20):
            batch = redirects[at : at + 20]
            pages = (await hub.value("core/web.fetch", {"urls": batch}))["pages"]
            got = {unquote(url): page["error"]["kind"] for url, page in zip(batch, pages, strict=True)}
            assert {url: kind for url, kind in got.items() if kind not in {*REFUSALS, "UPSTREAM_ERROR"}} == {}
        assert len(urls) > 150
        assert forbidden.connections == 0


async def test_one_url_that_is_refused_refuses_the_call_before_any_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_and_site(tmp_path, monkeypatch) as (hub, site, forbidden):
        urls = [site.url("/?x"), "http://169.254.169.254/"]
        result = await hub.invoke("core/web.fetch", {"urls": urls})
        assert result.error.kind == error_pb2.ERROR_KIND_HTTP_DISALLOWED_HOST
        assert json.loads(json.dumps(dict(result.error.details)))["argument"] == "urls"
        assert (site.connections, forbidden.connections) == (0, 0)
