"""Internal addresses, requested by a page in the browser of core/web.screenshot: no request arrives there."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, always, response, serving
from tests.fakes.resolvers import FixedResolver, TurningResolver
from tests.hub import RunningHub, running_hub
from toolhub.v1 import error_pb2

POLICY = """
extends: none
grants: [{principals: [local], capabilities: [network, "read:web", "write:fs"]}]
egress:
  - {hosts: ["127.0.0.1"], ports: [%(site)d], cidrs: [127.0.0.0/8]}
  - {hosts: ["rebind.example"], ports: [%(inside)d], cidrs: [127.0.0.2/32], schemes: [http, https]}
  - {hosts: ["*"], ports: [%(inside)d], schemes: [http, https]}
"""
# Each way by which a page makes a browser connect, tried with each internal address. A try reports that it was
# made, and the last of all that all were.
ATTACK = """<!doctype html><title>attack</title><body><img src="/until-all-is-tried"><script>
const inside = %(inside)s, port = %(port)d, udp = %(udp)d;
const tell = name => fetch('/told?' + encodeURIComponent(name)).catch(() => 0);
const settle = promise => Promise.race([promise, new Promise(done => setTimeout(done, 3000))]).catch(() => 0);
const add = (tag, values) => new Promise(done => {
  const element = Object.assign(document.createElement(tag), values);
  element.onload = element.onerror = done;
  document.body.append(element);
});
const ways = {
  fetch: host => fetch(`http://${host}/fetch`, {mode: 'no-cors'}),
  post: host => fetch(`http://${host}/post`, {mode: 'no-cors', method: 'POST', body: 'x'}),
  https: host => fetch(`https://${host}/https`, {mode: 'no-cors'}),
  xhr: host => new Promise(done => {
    const asked = new XMLHttpRequest(); asked.onloadend = done;
    asked.open('GET', `http://${host}/xhr`); asked.send(); }),
  websocket: host => new Promise(done => { const s = new WebSocket(`ws://${host}/ws`); s.onopen = s.onclose = done; }),
  wss: host => new Promise(done => { const s = new WebSocket(`wss://${host}/wss`); s.onopen = s.onclose = done; }),
  events: host => new Promise(done => {
    const s = new EventSource(`http://${host}/sse`); s.onerror = () => { s.close(); done(); }; }),
  iframe: host => add('iframe', {src: `http://${host}/iframe`}),
  image: host => add('img', {src: `http://${host}/img`}),
  script: host => add('script', {src: `http://${host}/js`}),
  style: host => add('link', {rel: 'stylesheet', href: `http://${host}/css`}),
  preconnect: host => { add('link', {rel: 'preconnect', href: `http://${host}/`}); },
  prefetch: host => { add('link', {rel: 'dns-prefetch', href: `http://${host}/`}); },
  media: host => { add('video', {src: `http://${host}/video`}); },
  object: host => { add('object', {data: `http://${host}/object`}); },
  beacon: host => { navigator.sendBeacon(`http://${host}/beacon`, 'x'); },
  popup: host => { window.open(`http://${host}/popup`); },
  redirect: host => fetch('/to?' + encodeURIComponent(`http://${host}/redirect`), {mode: 'no-cors'}),
  frame_redirect: host => add('iframe', {src: '/to?' + encodeURIComponent(`http://${host}/frame-redirect`)}),
  download: host => {
    const target = 'at ' + host, link = {href: `http://${host}/file`, download: 'f', target};
    add('iframe', {name: target}); Object.assign(document.createElement('a'), link).click(); },
  worker: host => { const code = `fetch('http://${host}/worker', {mode: 'no-cors'}).catch(() => 0)`;
                    new Worker(URL.createObjectURL(new Blob([code]))); },
};
const heavy = ['popup', 'worker', 'media', 'object', 'download'];
const odd = ['file:///etc/passwd', 'view-source:http://127.0.0.1:' + port + '/', 'ftp://127.0.0.1:' + port + '/',
             'chrome://version', 'gopher://127.0.0.1:' + port + '/'];
const hosts = name => inside.slice(0, heavy.includes(name) ? 2 : 9);
(async () => {
  await Promise.all(Object.entries(ways).flatMap(([name, way]) => hosts(name).map(async host => {
    try { await settle(Promise.resolve(way(host))); } catch {}
    await tell(name);
  })));
  await Promise.all(odd.map(url => settle(add('iframe', {src: url}))));
  try { window.open(odd[0]); window.open(odd[1]); } catch {}
  try { const peer = new RTCPeerConnection({iceServers: [{urls: `stun:127.0.0.1:${udp}`}]});
        peer.createDataChannel('x'); await peer.setLocalDescription(await peer.createOffer()); } catch {}
  await tell('everything');
})();
</script>"""
ATTACKS = (
    "fetch post https xhr websocket wss events iframe image script style preconnect prefetch media object beacon popup "
    "redirect frame_redirect download worker"
).split()


@asynccontextmanager
async def hub_and_site(
    home: Path, chromium: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RunningHub, RawServer, RawServer, socket.socket]]:
    """A hub, a site with the attack, and what must not be reached: a server and a socket for datagrams."""
    fixed = FixedResolver({"mixed.example": ("93.184.216.34", "127.0.0.1")}, default=("127.0.0.1",))
    # What is opened for its name at first, and loopback from then on.
    turning = TurningResolver(("127.0.0.2",), ("127.0.0.1",))

    async def resolve(_: object, host: str, port: int) -> Any:
        return await (turning if host == "rebind.example" else fixed).resolve(host, port)

    monkeypatch.setattr("toolhub_service.egress.resolver.SystemResolver.resolve", resolve)
    page = b""
    all_tried = asyncio.Event()

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        path, _, query = asked.target.partition("?")
        if query == "everything":
            all_tried.set()
        if path == "/until-all-is-tried":  # So that the picture is not taken before.
            await all_tried.wait()
        if path == "/to":
            writer.write(response(status=302, location=unquote(query)))
        elif path == "/attack":
            writer.write(response(page, content_type="text/html"))
        elif path == "/file":
            writer.write(
                response(b"x" * 100, content_type="application/octet-stream", content_disposition="attachment")
            )
        else:
            writer.write(response(b"", content_type="text/plain"))
        await writer.drain()
        return True

    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    datagrams.setblocking(False)
    with datagrams:
        async with serving(answer) as site, serving(always(response(b"inside"))) as forbidden:
            hosts = [
                "127.0.0.1",
                "localhost",
                "[::1]",
                "2130706433",
                "inside.example",
                "mixed.example",
                "rebind.example",
            ]
            values = {
                "inside": json.dumps([f"{host}:{forbidden.port}" for host in hosts]),
                "port": forbidden.port,
                "udp": datagrams.getsockname()[1],
            }
            page = (ATTACK % values).encode()
            policy = POLICY % {"site": site.port, "inside": forbidden.port}
            settings = {"browser": {"executable": chromium}}
            async with running_hub(home, policy=policy, settings=settings) as hub:
                yield hub, site, forbidden, datagrams


@pytest.mark.promise("web.browser-egress")
async def test_no_page_leads_a_request_inside(tmp_path: Path, chromium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_site(tmp_path, chromium, monkeypatch) as (hub, site, forbidden, datagrams):
        args = {"url": site.url("/attack"), "timeoutMs": 60_000}
        result = await hub.invoke("core/web.screenshot", args)
        assert result.ok, result.error.message
        reached = {asked.target.partition("?")[2] for asked in site.asked if asked.target.startswith("/told?")}
        assert set(ATTACKS) <= reached
        assert "everything" in reached
        assert result.evidence[0].summary.split()[-5] != "0", "the proxy refused nothing"
        assert forbidden.connections == 0
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)


@pytest.mark.promise("web.browser-egress")
async def test_a_forbidden_page_is_refused_with_its_kind(
    tmp_path: Path, chromium: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_and_site(tmp_path, chromium, monkeypatch) as (hub, site, forbidden, _):

        async def refused(url: str) -> str:
            result = await hub.invoke("core/web.screenshot", {"url": url})
            return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")

        at_once = [
            "file:///etc/passwd",
            f"view-source:{site.url()}",
            "chrome://version",
            "data:text/html,x",
            "about:blank",
        ]
        assert [await refused(url) for url in at_once] == ["INVALID_INPUT"] * len(at_once)
        assert await refused("http://169.254.169.254/") == "HTTP_DISALLOWED_HOST"
        assert site.connections == 0

        assert await refused(site.url(f"/to?{forbidden.url('/')}")) == "HTTP_DISALLOWED_HOST"
        assert await refused(site.url("/file")) == "INVALID_INPUT"
        assert forbidden.connections == 0
