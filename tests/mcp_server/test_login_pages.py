"""A caller without a login at a source is sent to the hub's page of it by the MCP client; then the call goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp_types import ElicitResult

from tests.fakes.mcp_servers.guarded import Guarded
from tests.mcp_server.mcp_hub import ERAS, McpHub
from tests.rpc.test_credentials import CredentialsHarness, credentials_harness
from tests.rpc.test_source_logins import NEEDS_LOGIN, PER_USER, READY, becomes, hosted, issuer, log_in, server
from tests.servers.issuer import RealIssuer

__all__ = ["issuer", "server"]
SERVED: dict[str, Any] = {"server": {"mcp": {"listen": "127.0.0.1:0", "tools": "full"}}}


@pytest.fixture
async def harness(issuer: RealIssuer, server: Guarded, tmp_path: Path) -> AsyncIterator[CredentialsHarness]:
    """bob has logged in, so that the tools are known."""
    async with credentials_harness(tmp_path, {"shop": hosted(server, issuer, **PER_USER)}, **SERVED) as running:
        await log_in(running, issuer, "bob", "bob")
        await becomes(running, READY)
        yield running


def endpoint(harness: CredentialsHarness) -> McpHub:
    return McpHub(harness.hub, f"http://127.0.0.1:{harness.hub.hub.mcp.listener.port}/mcp")


def site_of(url: str) -> str:
    return str(httpx.URL(url).copy_with(raw_path=b"")).rstrip("/")


class Person:
    """At a client that can open links."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.shown = ""

    async def elicit(self, _context: Any, params: Any) -> ElicitResult:
        self.urls.append(params.url)
        async with httpx.AsyncClient(timeout=30, follow_redirects=True) as browser:
            self.shown = (await browser.get(params.url)).text
            end = await browser.post(params.url, headers={"origin": site_of(params.url)})
            assert "Logged in" in end.text, end.text
        return ElicitResult(action="accept")


@pytest.mark.promise("mcpserver.logins")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_needs_a_login_sends_its_user_to_the_page_of_it_and_goes_on(
    era: str, harness: CredentialsHarness, issuer: RealIssuer
) -> None:
    await issuer.does("person alice")
    person = Person()
    async with endpoint(harness).client(era, harness.keys["alice"], elicitation_callback=person.elicit) as client:
        result = await client.call_tool("shop__whoami", {})
        assert (result.is_error, result.structured_content) == (False, {"result": "alice"})
        assert len(person.urls) == 1
        assert "alice, a caller of this hub, will act with your account" in person.shown
        again = await client.call_tool("shop__whoami", {})
        assert (again.structured_content, len(person.urls)) == ({"result": "alice"}, 1)
    events = [each.event for each in await harness.hub.events()]
    assert [each.principal for each in events if each.type.value == "CREDENTIAL_SET"] == ["bob", "alice"]


async def test_a_known_tool_of_a_source_that_needs_a_login_again_leads_to_the_page_too(
    harness: CredentialsHarness, issuer: RealIssuer
) -> None:
    await harness.ask("bob", "RevokeCredential", source="shop")
    await becomes(harness, NEEDS_LOGIN)
    await issuer.does("person alice")
    person = Person()
    async with endpoint(harness).client(ERAS[1], harness.keys["alice"], elicitation_callback=person.elicit) as client:
        result = await client.call_tool("shop__whoami", {})
        assert (result.is_error, result.structured_content) == (False, {"result": "alice"}), result


async def test_a_client_that_opens_no_links_gets_the_command(harness: CredentialsHarness) -> None:
    async with endpoint(harness).client(ERAS[1], harness.keys["alice"]) as client:
        result = await client.call_tool("shop__whoami", {})
    assert result.is_error
    assert "toolhub credentials login shop" in str(result.content)


@pytest.mark.promise("mcpserver.logins")
async def test_a_login_is_begun_by_the_page_alone_and_completed_by_its_browser_alone(
    harness: CredentialsHarness, issuer: RealIssuer
) -> None:
    await issuer.does("person alice")
    urls: list[str] = []

    async def note(_context: Any, params: Any) -> ElicitResult:
        urls.append(params.url)
        return ElicitResult(action="decline")

    hub = endpoint(harness)
    async with hub.client(ERAS[1], harness.keys["carol"], elicitation_callback=note) as client:
        assert (await client.call_tool("shop__whoami", {})).is_error
    site = site_of(urls[0])
    async with (
        httpx.AsyncClient(timeout=30) as browser,
        httpx.AsyncClient(timeout=30, follow_redirects=True) as another,
    ):
        assert (await browser.post(urls[0])).status_code == 405, "no page sends this"
        assert (await browser.post(urls[0], headers={"origin": "https://evil.example"})).status_code == 403
        assert (await browser.get(urls[0], headers={"host": "evil.example"})).status_code == 421
        assert (await browser.get(f"{site}/login/unknown")).status_code == 404
        page = await browser.get(urls[0])
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        begun = await browser.post(urls[0], headers={"origin": site})
        assert "HttpOnly; SameSite=Lax" in begun.headers["set-cookie"]
        # Somebody else who is sent on to the login cannot complete it, whoever agrees there.
        end = await another.get(begun.headers["location"])
        assert (end.status_code, "another browser" in end.text) == (400, True)
        assert (await harness.call("carol", "shop/whoami")).error.details["state"] == "NONE"
