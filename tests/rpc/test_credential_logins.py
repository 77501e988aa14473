"""Logins at a real authorization server: found by a source's server, kept, renewed once, revoked."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import httpx
import pytest
from click.testing import CliRunner

from tests.fakes.mcp_servers.guarded import Guarded, guarded_server
from tests.rpc.statuses import failed
from tests.rpc.test_credentials import DENIED, CredentialsHarness, credentials_harness
from tests.servers.issuer import RealIssuer, real_issuer
from toolhub.v1 import credential_service_pb2 as pb
from toolhub.v1 import error_pb2
from toolhub.v1.credential_service_pb2_grpc import (
    CredentialServiceServicer,
    add_CredentialServiceServicer_to_server,
)
from toolhub_service.app.wiring import deps
from toolhub_service.cli.root import toolhub
from toolhub_service.credentials.secret import Envelopes, Secret
from toolhub_service.credentials.vault import key_for
from toolhub_service.domain.call import Principal

BACK = "http://127.0.0.1:9/callback"
KEYS = {"keys": [{"id": "k1", "env": "VAULT_KEY_OF_THE_TEST"}]}


class ShiftedClock(deps.SystemClock):
    """The hub's, which a test can put forward."""

    shift_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + type(self).shift_s

    def unix_ms(self) -> int:
        return super().unix_ms() + int(type(self).shift_s * 1_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[ShiftedClock]:
    monkeypatch.setattr(deps, "SystemClock", ShiftedClock)
    monkeypatch.setattr(ShiftedClock, "shift_s", 0.0)
    monkeypatch.setenv("VAULT_KEY_OF_THE_TEST", bytes(range(32)).hex())
    return ShiftedClock


@pytest.fixture
async def issuer() -> AsyncIterator[RealIssuer]:
    async with real_issuer() as running:
        yield running


@pytest.fixture
async def server(issuer: RealIssuer) -> AsyncIterator[Guarded]:
    async with guarded_server(users={}, issuer=issuer.url) as running:

        def user_of(sent: str) -> str:
            """The subject of a token that was made for this server."""
            if sent == "Bearer shared-secret-0123456789":
                return "the hub"
            claims = claims_of(sent.removeprefix("Bearer "))
            return str(claims["sub"]) if claims.get("aud") == running.url and sent not in running.taken_back else ""

        running.user_of = user_of
        yield running


def claims_of(token: str) -> Mapping[str, Any]:
    try:
        part = token.split(".")[1]
        claims: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims


def entry(server: Guarded, known: RealIssuer, **per_user: Any) -> dict[str, Any]:
    shared = {"Authorization": "Bearer shared-secret-0123456789"}
    auth = {"per_user": {"kind": "oauth", "origins": [known.url], **per_user}}
    return {"kind": "mcp", "url": server.url, "headers": shared, "trust": "always", "auth": auth}


async def agreed(url: str) -> str:
    """Where a browser ends whose person is alice and agrees: that page is not asked for."""
    async with httpx.AsyncClient(timeout=30) as browser:
        while not url.startswith("http://127.0.0.1:9/"):
            answer = await browser.get(url)
            assert answer.is_redirect, answer.text
            url = str(answer.next_request.url) if answer.next_request else ""
    return url


async def logged_in(harness: CredentialsHarness, name: str) -> pb.Credential:
    begun = await harness.ask(name, "BeginLogin", source="shop", redirect_uri=BACK)
    kept = await harness.ask(name, "CompleteLogin", login=begun.login, **given(await agreed(begun.authorization_url)))
    credential: pb.Credential = kept.credential
    return credential


def given(url: str) -> dict[str, str]:
    query = parse_qs(urlsplit(url).query)
    named = {"code": "code", "state": "state", "issuer": "iss"}
    return {ours: query[theirs][0] for ours, theirs in named.items() if theirs in query}


async def refreshes(issuer: RealIssuer) -> int:
    assert issuer.process.stdin is not None
    assert issuer.process.stdout is not None
    issuer.process.stdin.write(b"refreshes\n")
    return int(await issuer.process.stdout.readline())


def secret_of(harness: CredentialsHarness, name: str) -> Any:
    """Reads what the vault keeps for somebody."""
    hub = harness.hub.hub
    vault, key = hub.sourcing.vault, key_for(Principal(name), "shop")

    async def read() -> Secret:
        stored = await hub.stores.credentials.get(key)
        assert stored is not None
        envelopes: Envelopes = vault._open.envelopes
        return envelopes.open(vault._sources["shop"], stored)

    return read


@pytest.mark.promise("credentials.own", "credentials.refresh")
async def test_a_user_logs_in_from_the_command_line_and_calls_carry_the_users_token_until_it_is_revoked(
    issuer: RealIssuer, server: Guarded, tmp_path: Path, clock: type[ShiftedClock]
) -> None:
    async with credentials_harness(tmp_path, {"shop": entry(server, issuer)}) as harness:
        refused = await harness.call("alice", "shop/whoami")
        assert refused.error.details["command"] == "toolhub credentials login shop"
        words = ("credentials", "login", "shop", "--no-browser", "--address", harness.hub.address)
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolhub_service", *words, "--api-key", harness.keys["alice"]),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stderr is not None
        lines = [(await program.stderr.readline()).decode().strip() for _ in range(2)]
        async with httpx.AsyncClient(timeout=30, follow_redirects=True) as browser:
            assert "close this window" in (await browser.get(lines[1])).text
        out, err = await program.communicate()
        assert program.returncode == 0, err
        assert b"toolhub" in out, "the scope that the server named"
        assert (await harness.value("alice", "shop/whoami"))["result"] == "alice"
        secret = await secret_of(harness, "alice")()
        for word in (secret.value, secret.refresh_token):
            assert word not in (out + err).decode()
        assert (secret.client.client_secret, secret.resource) == ("", server.url)

        # An access token that the server takes no more: one refresh, and the call succeeds.
        server.taken_back.add(f"Bearer {secret.value}")
        leaked = json.dumps(await harness.value("alice", "shop/leak"))
        assert await refreshes(issuer) == 1
        assert claims_of(server.seen[-1]["authorization"].removeprefix("Bearer "))["sub"] == "alice"
        assert server.seen[-1]["authorization"].rpartition(".")[2] not in leaked, (
            "the new one is nobody's to see, either"
        )

        # The issuer is away: a token that still holds is used, one that has expired is not.
        await issuer.does("away")
        fresh = await secret_of(harness, "alice")()
        lives_s = fresh.expires_at_unix_ms / 1_000 - clock().unix_ms() / 1_000
        clock.shift_s += lives_s - 20
        assert (await harness.value("alice", "shop/whoami"))["result"] == "alice"
        clock.shift_s += 30
        away = await harness.call("alice", "shop/whoami")
        assert (away.error.kind, away.error.retryable) == (error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, True)
        await issuer.does("back")
        assert (await harness.value("alice", "shop/whoami"))["result"] == "alice"
        assert await refreshes(issuer) == 2

        # A refresh token that was used elsewhere: its rotation is lost here, and the server ends the login.
        used = await secret_of(harness, "alice")()
        form = {"grant_type": "refresh_token", "refresh_token": used.refresh_token, "client_id": used.client.client_id}
        assert (await issuer.http.post(used.client.token_url, data=form)).status_code == 200
        clock.shift_s += 7_300
        spent = await harness.call("alice", "shop/whoami")
        assert (spent.error.kind, spent.error.details["state"]) == (DENIED, "LOGIN_NEEDED")
        (listed,) = (await harness.ask("alice", "ListCredentials")).credentials
        assert listed.state == pb.CREDENTIAL_STATE_LOGIN_NEEDED
        again = await harness.call("alice", "shop/whoami")
        assert again.error.details["state"] == "LOGIN_NEEDED"

        assert (await logged_in(harness, "alice")).state == pb.CREDENTIAL_STATE_ACTIVE
        last = await secret_of(harness, "alice")()
        assert (await harness.value("alice", "shop/whoami"))["result"] == "alice"
        assert (await harness.ask("alice", "RevokeCredential", source="shop")).revoked_upstream
        form["refresh_token"], form["client_id"] = last.refresh_token, last.client.client_id
        assert (await issuer.http.post(last.client.token_url, data=form)).status_code == 400, "revoked there, too"
        assert (await harness.call("alice", "shop/whoami")).error.kind == DENIED
    for key in harness.keys.values():
        assert key not in json.dumps(server.seen), "the caller's own credential reached the server"


async def test_a_login_is_completed_by_who_began_it_with_what_came_back_and_for_named_servers_only(
    issuer: RealIssuer, server: Guarded, tmp_path: Path, clock: type[ShiftedClock]
) -> None:
    named = {"client_id": "hub", "client_secret": "a secret of the test", "issuer": issuer.url, "origins": []}
    sources = {
        "shop": entry(server, issuer, **named, scopes=["toolhub"]),
        "unnamed": entry(server, issuer, origins=[]),
    }
    async with credentials_harness(tmp_path, sources) as harness:
        for uri in (
            "https://evil.example.com/callback",
            "http://127.0.0.1.evil.example.com/",
            "http://127.0.0.1@evil/",
            "http://127.0.0.1:99999/callback",
            "http://127.0.0.1:0/callback",
            "http://localhost:-1/callback",
            "http://[::1]:65536/callback",
        ):
            answer = await failed(harness.ask("alice", "BeginLogin", source="shop", redirect_uri=uri))
            assert answer.reason == "LOGIN_REFUSED"
        elsewhere = await failed(harness.ask("alice", "BeginLogin", source="unnamed", redirect_uri=BACK))
        assert issuer.url in elsewhere.message, "the operator sees which origin to name"

        begun = await harness.ask("alice", "BeginLogin", source="shop", redirect_uri=BACK)
        query = parse_qs(urlsplit(begun.authorization_url).query)
        assert (query["code_challenge_method"], query["resource"]) == (["S256"], [server.url])
        came = given(await agreed(begun.authorization_url))
        attacks: list[tuple[str, dict[str, str]]] = [
            ("bob", {}),
            ("alice", {"state": "x" * len(came["state"])}),
            ("alice", {"state": ""}),
            ("alice", {"issuer": "https://evil.example.com"}),
            ("alice", {"issuer": ""}),
            ("alice", {"login": begun.login[:-8] + "AAAAAAA="}),
            ("alice", {"login": begun.login.replace(":shop:", ":unnamed:")}),
            ("alice", {"login": "k1:shop:"}),
        ]
        for name, changed in attacks:
            answer = await failed(harness.ask(name, "CompleteLogin", **{"login": begun.login, **came, **changed}))
            assert answer.reason == "LOGIN_REFUSED", (name, changed)
            assert came["code"] not in answer.message
        await harness.ask("alice", "CompleteLogin", login=begun.login, **came)
        twice = await failed(harness.ask("alice", "CompleteLogin", login=begun.login, **came))
        assert twice.reason == "LOGIN_REFUSED", "a code is redeemed once"

        late = await harness.ask("bob", "BeginLogin", source="shop", redirect_uri=BACK)
        came = given(await agreed(late.authorization_url))
        clock.shift_s += 601
        answer = await failed(harness.ask("bob", "CompleteLogin", login=late.login, **came))
        assert "ten minutes" in answer.message


class _Rogue(CredentialServiceServicer):
    """A hub that wants the browser to open something else than a page."""

    wanted = ("file:///etc/passwd", "-private-window", "javascript:alert(1)", "https://id.example/\x1b]0;owned\x07")

    def __init__(self) -> None:
        self.left = [*self.wanted]

    def BeginLogin(self, request: Any, context: Any) -> pb.BeginLoginResponse:
        return pb.BeginLoginResponse(authorization_url=self.left.pop(), login="k1:shop:")


def test_the_command_line_opens_nothing_but_a_page_for_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", pytest.fail)
    server = grpc.server(ThreadPoolExecutor(1))
    rogue = _Rogue()  # type: ignore[abstract]  # nobody asks for more
    add_CredentialServiceServicer_to_server(rogue, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for _ in rogue.wanted:
            ran = CliRunner().invoke(toolhub, ["credentials", "login", "shop", "--address", f"127.0.0.1:{port}"])
            assert (ran.exit_code, "names no page" in ran.output, "\x1b" in ran.output) == (1, True, False), ran.output
    finally:
        server.stop(None).wait()


@pytest.mark.promise("credentials.refresh")
@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_hundred_calls_at_two_hubs_with_an_expired_token_make_one_refresh(
    kind: str, issuer: RealIssuer, server: Guarded, tmp_path: Path, clock: type[ShiftedClock], request: Any
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    shared = {"redis": {"redis_url": url}, "postgres": {"kind": "postgres", "postgres_url": url}}[kind]
    async with AsyncExitStack() as stack:
        hubs = [
            await stack.enter_async_context(
                credentials_harness(tmp_path / name, {"shop": entry(server, issuer)}, stores=shared, credentials=KEYS)
            )
            for name in ("one", "two")
        ]
        await logged_in(hubs[0], "alice")
        for harness in hubs:
            assert (await harness.value("alice", "shop/whoami"))["result"] == "alice"
        clock.shift_s += 7_300
        answers = await asyncio.gather(*(hubs[at % 2].value("alice", "shop/whoami") for at in range(100)))
        assert {each["result"] for each in answers} == {"alice"}
        assert await refreshes(issuer) == 1
