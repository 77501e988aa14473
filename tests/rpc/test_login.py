"""`toolhub login`, `logout` and `auth token` with a real issuer, whose user is played by an HTTP client."""

from __future__ import annotations

import asyncio
import json
import stat
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from re import findall, search
from threading import Thread
from typing import ClassVar

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.command_server import run
from tests.e2e.terminal import environment
from tests.free_port import free_port
from tests.mcp_server.mcp_hub import McpHub, mcp_hub
from tests.rpc.test_tokens import HUB, POLICY
from tests.servers.issuer import RealIssuer, real_issuer
from toolhub_service.cli.connection import login
from toolhub_service.cli.connection.loopback import by_browser
from toolhub_service.cli.connection.oauth import Issuer, LoginFailed, Request
from toolhub_service.cli.root import toolhub

_FORMS = 2
"""Of a code: that it was typed, and that it is the one of the terminal."""
TOKEN = r"ey[\w-]+\.[\w-]+"


@dataclass(slots=True)
class LoginUser:
    """The person at the browser."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    _hands: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    seen: Future[str] | None = None
    """The last page."""

    @property
    def tokens(self) -> Path:
        return self.home / "config/toolhub/tokens/prod.json"

    def has_browser(self) -> None:
        self.monkeypatch.setenv("BROWSER", "mine")
        self.monkeypatch.setattr(webbrowser, "open", self._opens)

    def has_phone(self, patience: Callable[[float], None] | None = None) -> None:
        """Enters the code that the terminal shows while the command waits, before it asks for the first time."""

        def shown(url: str, code: str, complete: str) -> None:
            assert code
            assert url
            self.seen = self._hands.submit(_page, complete)

        def waits(_: float) -> None:
            assert self.seen is not None
            self.seen.result(60)

        self.monkeypatch.setattr(login, "_show_code", shown)
        self.monkeypatch.setattr(login, "_pause", patience or waits)

    def _opens(self, url: str) -> bool:
        self.seen = self._hands.submit(_page, url)
        return True

    async def types(self, *words: str) -> Result:
        env = {"XDG_CONFIG_HOME": str(self.home / "config"), "TOOLHUB_ADDRESS": None, "TOOLHUB_API_KEY": None}
        ran = await asyncio.to_thread(CliRunner().invoke, toolhub, words, env=env)
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        assert words[:2] == ("auth", "token") or not search(TOKEN, ran.output), ran.output
        return ran

    def lets_expire(self) -> None:
        document = json.loads(self.tokens.read_text())
        for held in document["access"].values():
            held["expires_at"] = 1.0
        self.tokens.write_text(json.dumps(document))


def _page(url: str) -> str:
    """Whatever the issuer asks is answered."""
    with httpx.Client(follow_redirects=True, timeout=60.0) as http:
        page = http.get(url)
        for _ in range(_FORMS):
            form = search(r'<form[^>]*action="([^"]+)"', page.text)
            if form is None:
                break
            fields = dict(findall(r'name="(\w+)" value="([^"]*)"', page.text))
            page = http.post(str(page.url.join(form[1])), data=fields)
        return page.text


@pytest.fixture
async def issuer() -> AsyncIterator[RealIssuer]:
    async with real_issuer() as running:
        yield running


@pytest.fixture
async def hub(issuer: RealIssuer, tmp_path: Path) -> AsyncIterator[McpHub]:
    port = free_port()
    settings = {"auth": issuer.settings(HUB, required_scopes=["toolhub"], login_client_id="cli")}
    chosen = {"listen": f"127.0.0.1:{port}", "public_url": f"http://127.0.0.1:{port}/mcp"}
    async with mcp_hub(tmp_path, policy=POLICY, settings=settings, **chosen) as running:
        yield running


@pytest.fixture
async def user(hub: McpHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoginUser:
    user = LoginUser(tmp_path, monkeypatch)
    added = await user.types("context", "add", "prod", "--address", hub.grpc.address, "--login", "--mcp-url", hub.url)
    assert added.exit_code == 0, added.output
    return user


@pytest.mark.promise("cli.login")
async def test_a_login_in_the_browser_is_found_by_the_hub_refreshed_once_and_revoked(
    user: LoginUser, hub: McpHub, issuer: RealIssuer
) -> None:
    assert (
        "Nobody is logged in to prod. Log in: toolhub --context prod login"
        in (await user.types("tools", "list")).output
    )
    user.has_browser()
    done = await user.types("login")
    assert "Logged in to prod: token until" in done.output, done.output
    assert user.seen is not None
    assert "Go back to the terminal" in user.seen.result(60)
    assert stat.S_IMODE(user.tokens.stat().st_mode) == 0o600
    who = await user.types("auth", "whoami")
    assert who.output.splitlines()[0] == "real:alice (agent, operator)", who.output
    assert "login" in who.output
    known = json.loads((await user.types("auth", "whoami", "--json")).output)
    assert (known["principal"], known["context"], known["issuer"]) == ("real:alice", "prod", issuer.url)
    assert (await user.types("tools", "list")).exit_code == 0
    # Two programs at once with a token that has expired: one refresh, for the refresh token is good for one.
    user.lets_expire()
    env = environment(user.home, XDG_CONFIG_HOME=str(user.home / "config"))

    def printed() -> str:
        ran = run(("auth", "token"), stdin="", env=env, cwd=user.home, timeout_s=90)
        return ran.stdout or ran.stderr

    before = await issuer.refreshes()
    one, other = await asyncio.gather(asyncio.to_thread(printed), asyncio.to_thread(printed))
    assert one == other
    assert search(TOKEN, one), one
    assert await issuer.refreshes() == before + 1
    # MCP has a resource of its own, and neither token opens the other door.
    for_mcp = (await user.types("auth", "token", "--mcp")).output.strip()
    for token, status in ((for_mcp, 200), (one.strip(), 401)):
        headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(headers=headers, timeout=60.0) as http:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INITIALIZE}
            assert (await http.post(hub.url, json=ping)).status_code == status
    # `toolhub mcp` calls with the same login, refreshed where it must be.
    user.lets_expire()
    bridged = await asyncio.to_thread(
        run, ("mcp", "--context", "prod"), stdin=json.dumps(ping) + "\n", env=env, cwd=user.home, timeout_s=90
    )
    assert json.loads(bridged.stdout)["result"]["serverInfo"]["name"] == "tool-hub", bridged.stderr
    assert (await user.types("tools", "list")).exit_code == 0
    # While the issuer is away a token that still holds is used, and one that does not says so.
    await issuer.does("away")
    assert (await user.types("tools", "list")).exit_code == 0
    held = user.tokens.read_text()
    user.lets_expire()
    away = await user.types("tools", "list")
    assert (away.exit_code, "its answer did not come" in away.output) == (3, True), away.output
    await issuer.does("back")
    # A refresh token that was used already ends the login (RFC 9700 §4.14).
    assert (await user.types("tools", "list")).exit_code == 0
    user.tokens.write_text(held)
    user.lets_expire()
    assert "has ended the login to prod. Log in" in (await user.types("tools", "list")).output
    assert not user.tokens.exists()
    assert (await user.types("login")).exit_code == 0
    refresh = json.loads(user.tokens.read_text())["refresh_token"]
    assert "Logged out of prod." in (await user.types("logout")).output
    form = {"grant_type": "refresh_token", "refresh_token": refresh, "client_id": "cli"}
    assert (await issuer.http.post(f"{issuer.url}/token", data=form)).json()["error"] == "invalid_grant"
    assert "Nobody is logged in to prod." in (await user.types("logout")).output


_INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.mark.promise("cli.login")
async def test_a_login_by_a_code_and_every_way_it_ends(user: LoginUser, hub: McpHub, issuer: RealIssuer) -> None:
    user.has_phone()
    done = await user.types("login", "--device")
    assert "Logged in to prod" in done.output, done.output
    assert (await user.types("auth", "whoami")).output.startswith("real:alice")

    await issuer.does("deny")
    denied = await user.types("login", "--device")
    assert (denied.exit_code, "was denied" in denied.output) == (1, True), denied.output
    user.has_browser()
    assert "was denied" in (await user.types("login")).output
    await issuer.does("agree")

    # With a client of one's own, and one that is registered.
    own = ("context", "add", "prod", "--replace", "--address", hub.grpc.address, "--mcp-url", hub.url)
    assert (await user.types(*own, "--issuer", issuer.url, "--client-id", "hasty")).exit_code == 0
    assert not user.tokens.exists(), "another login may be meant"
    user.has_phone(lambda _: None)
    user.monkeypatch.setattr(login, "_show_code", lambda *_: None)
    expired = await user.types("login", "--device")
    assert "expired before anybody entered it. Run `toolhub login` again" in expired.output, expired.output

    await issuer.does("away")
    away = await user.types("login")
    assert (away.exit_code, f"{issuer.url}/.well-known" in away.output) == (3, True), away.output
    await issuer.does("back")
    assert (await user.types("context", "add", "bare", "--address", "127.0.0.1:1", "--login")).exit_code == 0
    assert "does not say who issues its tokens" in (await user.types("--context", "bare", "login")).output
    wrong = (*own, "--issuer", f"{issuer.url}/", "--client-id", "cli")
    assert (await user.types(*wrong)).exit_code == 0
    assert "Write the issuer to the letter" in (await user.types("login")).output


@pytest.mark.promise("cli.login")
def test_an_answer_that_another_page_or_issuer_sends_is_not_used() -> None:
    issuer = Issuer("https://id.example", "http://127.0.0.1:1/token", "https://id.example/auth", names_itself=True)
    statuses: list[int] = []

    def answered(**answer: str) -> str:
        """What the login ends with when the browser comes back with that; `state` is right unless it is given."""

        def visit(url: str) -> None:
            asked = dict(httpx.URL(url).params)
            assert asked["code_challenge_method"] == "S256"
            for path, query in (
                ("/callback", {"code": "x", "state": "forged", "iss": issuer.issuer}),
                ("/other", {"code": "x", "state": asked["state"]}),
                ("/callback", {"state": asked["state"], **answer}),
            ):
                where = httpx.URL(asked["redirect_uri"]).copy_with(path=path, params=query)
                statuses.append(httpx.get(where, trust_env=False).status_code)

        with pytest.raises(LoginFailed) as failed, httpx.Client() as http:
            by_browser(http, issuer, Request("cli", ("toolhub",), (HUB,)), visit, 1.0)
        return failed.value.message

    assert "comes from 'https://evil.example' and not from" in answered(code="x", iss="https://evil.example")
    assert "comes from nobody" in answered(code="x")
    refused = answered(error="invalid_scope", error_description="no \x1b[2J", iss=issuer.issuer)
    assert "refused: invalid_scope: no \x1b[2J" in refused, "it is escaped where it is printed"
    assert "without a code" in answered(iss=issuer.issuer)
    assert statuses == [400, 400, 200] * 4
    assert "Nobody logged in within 1 s" in answered(code="x", state="forged")


class _TokenThief(BaseHTTPRequestHandler):
    """The MCP endpoint of a hub that asks for tokens of another hub."""

    wants: ClassVar[dict[str, object]] = {}

    def do_GET(self) -> None:
        body = json.dumps({"resource": f"http://{self.headers['host']}/mcp", **self.wants}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.promise("cli.login")
async def test_a_hub_gets_no_tokens_for_servers_of_others(user: LoginUser, issuer: RealIssuer) -> None:
    user.has_browser()
    thief = HTTPServer(("127.0.0.1", 0), _TokenThief)
    serving = Thread(target=thief.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        place = ("--address", "thief.example:50051", "--mcp-url", f"http://127.0.0.1:{thief.server_port}/mcp")
        added = await user.types("context", "add", "thief", *place, "--login", "--use")
        assert added.exit_code == 0, added.output
        wishes: list[dict[str, object]] = [
            {"toolhub_logins": [{"issuer": issuer.url, "client_id": "cli", "resource": HUB}]},
            {"toolhub_logins": [{"issuer": issuer.url, "client_id": "cli"}], "scopes_supported": [f"{HUB}/.default"]},
        ]
        for wish in wishes:
            _TokenThief.wants = {"authorization_servers": [issuer.url], **wish}
            refused = await user.types("login")
            assert (refused.exit_code, f"wants a token for {HUB}" in refused.output) == (1, True), refused.output
            assert user.seen is None, "a page was opened"
    finally:
        thief.shutdown()
        serving.join()
        thief.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
