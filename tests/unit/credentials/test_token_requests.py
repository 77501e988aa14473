"""Authorization servers that break off: a code or a refresh token may be used up although no tokens came."""

from __future__ import annotations

import pytest

from tests.fakes.http_server import always, response, serving
from toolhub_service.credentials.secret import ClientAt, OAuthSettings, PerUserTerms, Secret
from toolhub_service.credentials.token_requests import GrantRefused, TokenRequests, Unanswered, Unreachable
from toolhub_service.domain.credential import CredentialKind

NOBODY = "http://127.0.0.1:9"


def terms_at(url: str) -> PerUserTerms:
    return PerUserTerms("shop", CredentialKind.OAUTH, server_url=url, oauth=OAuthSettings(client_id="hub"))


async def ask_at(url: str, requests: TokenRequests) -> Exception:
    client = ClientAt(token_url=f"{url}/token", client_id="hub")
    with pytest.raises((Unreachable, GrantRefused)) as failed:
        await requests.refresh(terms_at(url), Secret("old", "refresh", client=client), 0)
    return failed.value


@pytest.mark.promise("effects.sent-or-not")
@pytest.mark.parametrize(
    "raw",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", response(status=504), response(status=524)],
    ids=["no answer", "half an answer", "504", "524"],
)
async def test_a_token_request_that_was_sent_and_not_answered_may_have_used_the_token_up(raw: bytes) -> None:
    requests = TokenRequests()
    async with serving(always(raw, keep=False)) as server:
        assert isinstance(await ask_at(server.url("").rstrip("/"), requests), Unanswered)
    await requests.close()


@pytest.mark.promise("effects.sent-or-not")
async def test_a_token_request_that_never_left_or_was_refused_has_used_nothing_up() -> None:
    requests = TokenRequests()
    assert type(await ask_at(NOBODY, requests)) is Unreachable
    async with serving(always(response(status=503))) as server:
        assert type(await ask_at(server.url("").rstrip("/"), requests)) is Unreachable
    refusal = response(b'{"error": "invalid_grant"}', status=400, content_type="application/json")
    async with serving(always(refusal)) as server:
        assert isinstance(await ask_at(server.url("").rstrip("/"), requests), GrantRefused)
    await requests.close()
