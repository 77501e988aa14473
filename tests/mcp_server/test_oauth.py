"""The endpoint as an OAuth 2.1 protected resource, with a real issuer: metadata, challenges, a client's flow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.free_port import free_port
from tests.mcp_server.mcp_hub import ERAS, MODES, McpHub, mcp_hub
from tests.mcp_server.test_admission import HEADERS, INITIALIZE, PING
from tests.rpc.test_tokens import HUB, POLICY, ShiftedClock, bearer, clock
from tests.servers.issuer import RealIssuer, real_issuer

__all__ = ["clock"]
WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture
async def issuer() -> AsyncIterator[RealIssuer]:
    async with real_issuer() as running:
        yield running


@pytest.fixture
async def hub(issuer: RealIssuer, tmp_path: Path, clock: type[ShiftedClock]) -> AsyncIterator[McpHub]:
    port = free_port()
    settings = {"auth": issuer.settings(HUB, required_scopes=["toolhub"])}
    chosen = {"listen": f"127.0.0.1:{port}", "public_url": f"http://127.0.0.1:{port}/mcp"}
    async with mcp_hub(tmp_path, policy=POLICY, settings=settings, **chosen) as running:
        yield running


@pytest.mark.promise("mcpserver.oauth")
async def test_clients_learn_who_issues_tokens_and_why_one_is_refused(
    issuer: RealIssuer, hub: McpHub, clock: type[ShiftedClock]
) -> None:
    base = hub.url.removesuffix("/mcp")
    async with httpx2.AsyncClient(headers=HEADERS) as http:
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
            answer = await http.get(base + path)
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == {
                "resource": hub.url,
                "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"],
                "resource_name": "tool-hub",
                "scopes_supported": ["toolhub"],
                "toolhub_logins": [{"issuer": issuer.url, "resource": HUB}],
            }
        assert (await http.get(f"{base}{WELL_KNOWN}/other")).status_code == 404

        learn = f'scope="toolhub", resource_metadata="{base}{WELL_KNOWN}/mcp"'
        expired = await issuer.token("brief", hub.url)
        clock.shift_s += 5
        weak = await issuer.token("robot", hub.url, scope="")
        cases = {
            "": (401, f'Bearer realm="tool-hub", {learn}'),
            expired: (401, "The token has expired. Get a new one."),
            await issuer.token("robot", HUB): (401, "The token was not made for this hub (`aud`)."),
            weak: (403, f'error="insufficient_scope", scope="toolhub", resource_metadata="{base}{WELL_KNOWN}/mcp"'),
        }
        for token, (status, words) in cases.items():
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = await http.post(hub.url, json=PING, headers=headers)
            challenge = answer.headers["www-authenticate"]
            assert (answer.status_code, words in challenge) == (status, True), challenge
            if token:
                assert token not in answer.text + challenge
            if status == 401 and token:
                assert f'error="invalid_token", error_description="{words}", {learn}' in challenge
        assert (await hub.grpc.invoke("core/util.time.now", metadata=bearer(await issuer.token("robot", HUB)))).ok


@pytest.mark.promise("mcpserver.oauth")
async def test_a_session_goes_on_under_new_tokens_of_its_principal_and_no_others(
    issuer: RealIssuer, hub: McpHub, clock: type[ShiftedClock]
) -> None:
    for era in ERAS:
        async with hub.client(era, await issuer.token("robot", hub.url)) as client:
            assert not (await client.call_tool("core__util_time_now", {})).is_error
    async with httpx2.AsyncClient(headers=HEADERS) as http:

        async def post(body: Any, client: str, **session: str) -> httpx2.Response:
            token = await issuer.token(client, hub.url)
            return await http.post(hub.url, json=body, headers={"authorization": f"Bearer {token}", **session})

        brief = {"authorization": f"Bearer {await issuer.token('brief', hub.url)}"}
        opened = await http.post(hub.url, json=INITIALIZE, headers=brief)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert (await http.post(hub.url, json=PING, headers={**brief, **session})).status_code == 200
        clock.shift_s += 5
        assert (await http.post(hub.url, json=PING, headers={**brief, **session})).status_code == 401
        clock.shift_s = 0
        assert (await post(PING, "brief", **session)).status_code == 200
        assert (await post(PING, "robot", **session)).status_code == 404


class ClientStorage:
    """What a client keeps."""

    tokens: OAuthToken | None = None
    info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.info = client_info


class Browser:
    """The user's: follows the issuer's redirects to the client's own URL."""

    back = "http://127.0.0.1:1/callback"

    def __init__(self) -> None:
        self.came_back: Mapping[str, list[str]] = {}

    async def goes_to(self, url: str) -> None:
        async with httpx2.AsyncClient() as http:
            while not url.startswith(self.back):
                answer = await http.get(url)
                assert answer.is_redirect, answer.text
                url = str(httpx2.URL(url).join(answer.headers["location"]))
        self.came_back = parse_qs(urlsplit(url).query)

    async def code(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**{name: values[0] for name, values in self.came_back.items()})


@pytest.mark.promise("mcpserver.oauth")
async def test_the_sdks_client_finds_the_issuer_registers_logs_in_and_calls(issuer: RealIssuer, hub: McpHub) -> None:
    used: list[str] = []
    for era in ERAS:
        browser, storage = Browser(), ClientStorage()
        metadata = OAuthClientMetadata(client_name="a test", redirect_uris=[AnyUrl(browser.back)])
        provider = OAuthClientProvider(hub.url, metadata, storage, browser.goes_to, browser.code)
        async with (
            httpx2.AsyncClient(auth=provider, timeout=60.0) as http,
            Client(streamable_http_client(hub.url, http_client=http), mode=MODES[era]) as client,
        ):
            assert not (await client.call_tool("core__util_time_now", {})).is_error
        assert storage.tokens is not None
        used.append(storage.tokens.access_token)
    events = await hub.grpc.events(principal="real:alice")
    assert {event.event.attributes["issuer"] for event in events} == {"real"}
    assert not any(token in repr(events) for token in used)
