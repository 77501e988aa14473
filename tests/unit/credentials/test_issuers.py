"""Which authorization server a source's server names, by its metadata or by being one itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from toolhub_service.credentials.issuers import NamedIssuer, is_same_issuer, issuer_metadata, named_issuer
from toolhub_service.credentials.secret import OAuthSettings
from toolhub_service.credentials.token_requests import Answer, TokenRequests, Unreachable

SERVER = "https://mcp.example/v1/mcp"
RESOURCE = "https://mcp.example/.well-known/oauth-protected-resource"
AUTHORIZATION = "/.well-known/oauth-authorization-server"


class Web(TokenRequests):
    """Documents by URL; others are not there."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]], challenge: str = "") -> None:
        super().__init__()
        self._documents = documents
        self._challenge = challenge

    async def ask(
        self, settings: Any, server_url: Any, url: Any, form: Any = None, authorization: Any = "", document: Any = None
    ) -> Answer:
        if url == SERVER:
            return Answer(401, {}, self._challenge)
        found = self._documents.get(url)
        return Answer(404, {}, "") if found is None else Answer(200, found, "")


async def named(documents: Mapping[str, Mapping[str, Any]], challenge: str = "") -> NamedIssuer:
    return await named_issuer(Web(documents, challenge), OAuthSettings(), SERVER)


async def test_the_metadata_that_a_challenge_names_goes_before_the_well_known_one() -> None:
    own = {"resource": SERVER, "authorization_servers": ["https://login.example"], "scopes_supported": ["read"]}
    other = {"resource": SERVER, "authorization_servers": ["https://other.example"]}
    documents = {f"{RESOURCE}/v1/mcp": other, "https://mcp.example/meta": own}
    expected = NamedIssuer("https://login.example", SERVER, "read")
    assert await named(documents, 'Bearer resource_metadata="https://mcp.example/meta"') == expected
    assert (await named(documents)).issuer == "https://other.example"


async def test_a_server_without_metadata_may_be_its_own_issuer() -> None:
    documents = {f"https://mcp.example{AUTHORIZATION}": {"issuer": "https://mcp.example"}}
    assert await named(documents) == NamedIssuer("https://mcp.example", SERVER)


@pytest.mark.parametrize(
    "documents",
    [
        {},
        {f"https://mcp.example{AUTHORIZATION}": {"issuer": "https://evil.example"}},
        {RESOURCE: {"resource": "https://mcp.example/v2", "authorization_servers": ["https://login.example"]}},
        {RESOURCE: {"resource": "https://evil.example", "authorization_servers": ["https://login.example"]}},
        {RESOURCE: {"resource": SERVER, "authorization_servers": []}},
    ],
    ids=["nothing", "another's", "another path", "another server", "no issuer"],
)
async def test_what_does_not_speak_for_the_server_names_nobody(documents: Mapping[str, Mapping[str, Any]]) -> None:
    with pytest.raises(Unreachable) as failed:
        await named(documents)
    assert "name `issuer`" in str(failed.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example", "https://a.example", True),
        ("https://a.example", "https://a.example/", True),
        ("https://a.example/x", "https://a.example/x/", False),
        ("https://a.example", "https://a.example.evil", False),
        ("https://a.example", "https://a.example//", False),
        ("", "/", False),
    ],
)
async def test_an_issuer_is_the_same_with_and_without_the_slash_of_its_root_alone(
    one: str, other: str, same: bool
) -> None:
    assert is_same_issuer(one, other) == is_same_issuer(other, one) == same
    web = Web({f"https://a.example{AUTHORIZATION}": {"issuer": other}})
    if same:
        assert (await issuer_metadata(web, OAuthSettings(), SERVER, one))["issuer"] == other
