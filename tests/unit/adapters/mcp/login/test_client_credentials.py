from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any
from urllib.parse import parse_qs, quote

import httpx2
import orjson
import pytest

from tests.unit.adapters.mcp.links import within
from tests.unit.adapters.mcp.mock_server import answer_to, sending_to
from toolhub_service.adapters.mcp.kind import HttpTerms, McpTerms, OAuthTerms, StdioTerms
from toolhub_service.adapters.mcp.login.client_credentials import AuthorizedTransport, Tokens
from toolhub_service.adapters.mcp.messages.http import origin_of
from toolhub_service.adapters.mcp.transports.http import BoundedTransport

URL = "https://mcp.example/mcp"
AS = "https://login.example"
SECRET = "s3cret:/canary"
BASIC = "Basic " + base64.b64encode(b"hub:s3cret%3A%2Fcanary").decode()


class AuthHarness:
    """An MCP server and an authorization server."""

    def __init__(self) -> None:
        self.good = ""
        self.issued = 0
        self.life_s: float | None = 3600
        self.refuses = False
        self.resource: dict[str, object] = {"resource": URL, "authorization_servers": [AS], "scopes_supported": ["a"]}
        self.metadata: dict[str, object] = {"issuer": AS, "token_endpoint": f"{AS}/token"}
        self.requests: list[httpx2.Request] = []
        self.other_metadata: dict[str, object] = {}
        """Of any other authorization server."""
        self.challenge = "Bearer"
        self.lacking = ""
        """A scope that the tokens so far do not have."""

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        await asyncio.sleep(0)
        if request.url.path == "/token":
            return self._token()
        if request.url.path == "/.well-known/oauth-protected-resource/mcp":
            return httpx2.Response(200, json=self.resource)
        if request.url.path == "/.well-known/oauth-authorization-server":
            is_ours = request.url.host == "login.example"
            return httpx2.Response(200, json=self.metadata if is_ours else self.other_metadata)
        if request.url.path == "/mcp":
            if self.lacking:
                challenge = f'Bearer error="insufficient_scope", scope="{self.lacking}"'
                self.lacking = ""
                return httpx2.Response(403, headers={"www-authenticate": challenge})
            if self.good and request.headers.get("authorization") == f"Bearer {self.good}":
                return httpx2.Response(200, json={"ok": True})
            return httpx2.Response(401, headers={"www-authenticate": self.challenge})
        return httpx2.Response(404)

    def _token(self) -> httpx2.Response:
        if self.refuses:
            return httpx2.Response(401, json={"error": "invalid_client"})
        self.issued += 1
        self.good = f"token-{self.issued}"
        life = {} if self.life_s is None else {"expires_in": self.life_s}
        return httpx2.Response(200, json={"access_token": self.good, "token_type": "Bearer", **life})

    def asked(self, path: str) -> list[httpx2.Request]:
        return [request for request in self.requests if request.url.path == path]


def transport(world: AuthHarness, *, token_url: str = "", origins: tuple[str, ...] = (URL, AS)) -> AuthorizedTransport:
    allowed = frozenset(origin_of(httpx2.URL(url)) for url in origins)
    bounded = BoundedTransport(sending_to(world), allowed, 10_000, lambda _: None)
    return AuthorizedTransport(bounded, Tokens(OAuthTerms("hub", SECRET, token_url), URL))


async def post(client: AuthorizedTransport) -> int:
    return (await answer_to(client, httpx2.Request("POST", URL, content=b"{}"))).status_code


async def test_a_token_is_had_before_the_first_request_where_its_url_is_known() -> None:
    world = AuthHarness()
    client = transport(world, token_url=f"{AS}/token")
    assert [await post(client) for _ in range(3)] == [200, 200, 200]
    (asked,) = world.asked("/token")
    assert asked.headers["authorization"] == BASIC
    assert parse_qs(asked.content.decode()) == {"grant_type": ["client_credentials"]}
    assert world.requests[0] is asked


async def test_the_token_endpoint_is_discovered_from_the_server_and_gets_the_resource() -> None:
    world = AuthHarness()
    assert await post(transport(world)) == 200
    (asked,) = world.asked("/token")
    assert parse_qs(asked.content.decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["a"],
        "resource": [URL],
    }
    assert len(world.asked("/mcp")) == 2


async def test_headers_of_a_source_do_not_reach_the_token_endpoint() -> None:
    world = AuthHarness()
    request = httpx2.Request("POST", URL, headers={"x-team": "core"}, content=b"{}")
    assert (await answer_to(transport(world), request)).status_code == 200
    (asked,) = world.asked("/token")
    assert "x-team" not in asked.headers
    assert world.asked("/mcp")[-1].headers["x-team"] == "core"


async def test_the_resource_is_sent_in_the_servers_own_spelling() -> None:
    world = AuthHarness()
    world.resource["resource"] = "https://mcp.example"
    assert await post(transport(world)) == 200
    (asked,) = world.asked("/token")
    assert parse_qs(asked.content.decode())["resource"] == ["https://mcp.example"]


async def test_scopes_that_were_too_few_are_asked_for_together_with_the_missing_ones() -> None:
    world = AuthHarness()
    client = transport(world)
    assert await post(client) == 200
    world.lacking = "write"
    assert await post(client) == 200
    first, second = (parse_qs(asked.content.decode())["scope"] for asked in world.asked("/token"))
    assert (first, second) == (["a"], ["a write"])


async def test_credentials_are_not_shown_to_another_authorization_server_than_the_first_that_took_them() -> None:
    world = AuthHarness()
    client = transport(world, origins=(URL, AS, "https://evil.example"))
    assert await post(client) == 200
    world.good = "revoked"
    evil: dict[str, object] = {"issuer": "https://evil.example", "token_endpoint": "https://evil.example/token"}
    world.resource["authorization_servers"] = ["https://evil.example"]
    world.other_metadata = evil
    assert await post(client) == 401
    assert all(request.url.path != "/token" for request in world.requests if request.url.host == "evil.example")
    assert world.asked("/.well-known/oauth-authorization-server")[-1].url.host == "evil.example"


async def test_secrets_go_in_the_body_where_only_that_is_supported() -> None:
    world = AuthHarness()
    world.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    assert await post(transport(world)) == 200
    (asked,) = world.asked("/token")
    assert "authorization" not in asked.headers
    assert parse_qs(asked.content.decode())["client_secret"] == [SECRET]


async def test_many_requests_wait_for_one_token_and_then_run_side_by_side() -> None:
    world = AuthHarness()
    client = transport(world)
    assert set(await asyncio.gather(*(post(client) for _ in range(50)))) == {200}
    assert world.issued == 1


async def test_a_token_is_renewed_before_it_expires_and_once_after_a_401() -> None:
    world = AuthHarness()
    client = transport(world, token_url=f"{AS}/token")
    world.life_s = 1e-9
    assert await post(client) == 200
    world.life_s = 3600
    assert await post(client) == 200
    assert world.issued == 2
    world.good = "revoked"
    assert await post(client) == 200
    assert world.issued == 3
    assert len(world.asked("/mcp")) == 4


async def test_a_refused_client_is_not_tried_at_each_request() -> None:
    world = AuthHarness()
    world.refuses = True
    client = transport(world, token_url=f"{AS}/token")
    assert [await post(client) for _ in range(10)] == [401] * 10
    assert len(world.asked("/token")) == 1


@pytest.mark.promise("mcp.credentials-stay")
@pytest.mark.parametrize(
    ("resource", "metadata"),
    [
        ({"resource": "https://other.example/mcp", "authorization_servers": [AS]}, {}),
        ({"resource": URL, "authorization_servers": ["https://evil.example"]}, {}),
        ({}, {"issuer": "https://evil.example"}),
        ({}, {"token_endpoint": "https://evil.example/token"}),
        ({}, {"token_endpoint": 7}),
        ({"authorization_servers": "nonsense"}, {"issuer": 5}),
    ],
)
async def test_credentials_never_go_where_the_metadata_does_not_fit_or_the_operator_did_not_say(
    resource: dict[str, object], metadata: dict[str, object]
) -> None:
    world = AuthHarness()
    world.resource |= resource
    world.metadata |= metadata
    assert await post(transport(world)) == 401
    assert world.issued == 0
    for request in world.requests:
        assert SECRET not in request.content.decode()
        assert request.url.host in {"mcp.example", "login.example"}


async def test_a_metadata_url_of_the_server_is_dialled_only_where_the_operator_allows_it() -> None:
    world = AuthHarness()
    world.challenge = 'Bearer resource_metadata="https://169.254.169.254/latest"'
    assert await post(transport(world)) == 200
    assert all(request.url.host != "169.254.169.254" for request in world.requests)


async def test_a_malformed_token_is_not_sent() -> None:
    world = AuthHarness()
    client = transport(world, token_url=f"{AS}/mcp")
    assert await within(30, post(client)) == 401


@pytest.mark.parametrize("life", [int("9" * 400), "3600", True, [1], {"s": 1}, "9" * 400, -1])
async def test_a_token_is_used_whatever_its_server_says_about_its_lifetime(life: Any) -> None:
    world = AuthHarness()
    world.life_s = life
    client = transport(world, token_url=f"{AS}/token")
    assert [await post(client) for _ in range(3)] == [200, 200, 200]
    assert len(world.asked("/token")) == 1


@pytest.mark.parametrize("scopes", [["s" * 5_000], [f"scope-{number}" for number in range(800)], {"a": 1}, 7])
async def test_scopes_that_are_too_long_are_not_asked_for(scopes: object) -> None:
    world = AuthHarness()
    world.resource["scopes_supported"] = scopes
    client = transport(world)
    assert await post(client) == 200
    assert "scope" not in parse_qs(world.asked("/token")[0].content.decode())


async def test_secrets_appear_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    world = AuthHarness()
    with caplog.at_level(logging.DEBUG):
        client = transport(world)
        await post(client)
    oauth = OAuthTerms("hub", SECRET)
    where = HttpTerms(
        f"https://u:{quote(SECRET, safe='')}@h.example/p?key={SECRET}", {"authorization": f"Bearer {SECRET}"}, oauth
    )
    terms = McpTerms("x", where)
    assert terms.endpoint == "https://h.example/p"
    shown = f"{terms!r} {terms} {terms.endpoint} {client!r} {client._tokens!r} {caplog.text}"
    assert SECRET not in shown
    assert world.good not in shown
    assert SECRET in terms.secrets


def test_the_secrets_of_an_argv_do_not_stand_in_its_endpoint() -> None:
    where = StdioTerms(
        "npx", ("-y", "@x/server", "--api-key", "hunter2", "--port=1", "ENVVALUE99"), {"K": "ENVVALUE99"}
    )
    terms = McpTerms("x", where)
    assert terms.endpoint.startswith("stdio:npx -y @x/server --api-key ")
    assert "hunter2" not in terms.endpoint + repr(terms).replace("'hunter2'", "")
    assert "ENVVALUE99" not in terms.endpoint


def test_the_answer_of_an_unauthorized_request_is_a_json_rpc_error() -> None:
    body = orjson.loads(
        asyncio.run(_body(transport(AuthHarness(), token_url=f"{AS}/none"))),
    )
    assert body["error"]["data"]["breakage"] == "UNAUTHORIZED"


async def _body(client: AuthorizedTransport) -> bytes:
    return await (await answer_to(client, httpx2.Request("POST", URL))).aread()
