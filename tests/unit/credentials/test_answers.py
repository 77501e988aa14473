"""Whatever an authorization server answers, its members have a type and a bound, and nothing of it breaks a renewal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.clock import FixedRandomness
from tests.fakes.http_server import always, response, serving
from tests.fakes.remote_harness import LoopClock
from toolhub_service.credentials import answers
from toolhub_service.credentials.answers import SCOPE_MAX_CHARS, TOKEN_MAX_CHARS, lifetime_s, scope_of, text_in
from toolhub_service.credentials.sealing import SealingKeys
from toolhub_service.credentials.secret import ClientAt, Envelopes, OAuthSettings, PerUserTerms, Secret
from toolhub_service.credentials.token_requests import GrantRefused, TokenRequests, secret_from_answer
from toolhub_service.credentials.vault import Vault, key_for
from toolhub_service.domain.call import Principal
from toolhub_service.domain.credential import CredentialKind, CredentialState, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.memory.records import MemoryRecords

DIGITS = int("9" * 400)
ALICE = Principal("alice", tenant="acme")
FORMER = Secret("old", refresh_token="refresh-0", scope="read")
TEN_YEARS_S = 10 * 365 * 86_400.0


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        (3600, 3600.0),
        (0.5, 0.5),
        ("3600", 3600.0),
        (DIGITS, TEN_YEARS_S),
        (1e300, TEN_YEARS_S),
        ("9" * 400, 0.0),
        (-DIGITS, 0.0),
        (0, 0.0),
        (True, 0.0),
        (float("nan"), 0.0),
        (float("inf"), 0.0),
        ("-1", 0.0),
        ("١٢", 0.0),
        ([3600], 0.0),
        ({"s": 1}, 0.0),
        (None, 0.0),
    ],
)
def test_a_lifetime_is_a_bounded_number_of_seconds(value: object, expected_s: float) -> None:
    assert lifetime_s(value) == expected_s
    secret = secret_from_answer({"access_token": "t", "token_type": "Bearer", "expires_in": value}, FORMER, 1_000)
    assert secret.expires_at_unix_ms == (1_000 + int(expected_s * 1_000) if expected_s else 0)


@pytest.mark.parametrize("scope", ["x" * 200_000, ["x"], {"a": 1}, 7, None, "a\nb", "ü"])
def test_a_scope_that_is_too_long_or_no_scope_does_not_replace_the_former(scope: object) -> None:
    secret = secret_from_answer({"access_token": "t", "scope": scope}, FORMER, 0)
    assert secret.scope in ("read", "x")
    assert len(secret.scope) <= SCOPE_MAX_CHARS


@pytest.mark.parametrize("refresh", ["r" * (TOKEN_MAX_CHARS + 1), 7, ["r"], "", None, "a\0b"])
def test_a_refresh_token_that_cannot_be_kept_does_not_replace_the_former(refresh: object) -> None:
    assert secret_from_answer({"access_token": "t", "refresh_token": refresh}, FORMER, 0).refresh_token == "refresh-0"


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": "t" * (TOKEN_MAX_CHARS + 1)},
        {"access_token": "a\r\nx: y"},
        {"access_token": ["t"]},
        {"access_token": "t", "token_type": {"a": "b" * 9_000}},
        {"access_token": "t", "token_type": "DPoP"},
    ],
)
def test_an_answer_without_a_bearer_token_that_a_header_can_hold_gives_none(answer: dict[str, Any]) -> None:
    with pytest.raises(GrantRefused):
        secret_from_answer(answer, FORMER, 0)


def test_members_of_metadata_and_registrations_are_short_printable_texts() -> None:
    assert text_in({"issuer": "https://a.example"}, "issuer") == "https://a.example"
    for value in ("x" * 3_000, "a\nb", 1, ["x"], None, {"a": "b"}):
        assert text_in({"issuer": value}, "issuer") == ""
    assert answers.first_text(["https://a.example", 7]) == "https://a.example"
    unusable: tuple[object, ...] = ([], [7], ["x" * 3_000], "https://a.example", None)
    for named in unusable:
        assert answers.first_text(named) == ""
    assert scope_of([f"s{number}" for number in range(10_000)]) == ""
    assert scope_of(["read", 7, "x" * 5_000, "write"]) == "read write"


async def kept_at(token_url: str) -> tuple[Vault, Credentials]:
    """A vault with a credential that this endpoint renews."""
    store, keys = Credentials(MemoryRecords(CREDENTIALS)), SealingKeys({"k1": bytes(32)})
    vault = Vault(store, lambda: keys, LoopClock(), FixedRandomness())
    own = OAuthSettings(issuer=token_url, client_id="hub")
    terms = PerUserTerms("bank", CredentialKind.OAUTH, server_url="https://bank.example", oauth=own)
    vault.open_source(terms)
    client = ClientAt(token_url=token_url, client_id="hub")
    key = key_for(ALICE, "bank")
    bare = StoredCredential(
        tenant=key.tenant,
        principal=key.principal,
        source=key.source,
        kind=CredentialKind.OAUTH,
        key_id="",
        sealed=b"",
        generation="1",
        created_at_unix_ms=1,
        changed_at_unix_ms=1,
    )
    secret = Secret("used", "refresh-0", client=client, server=terms.origin)
    assert await store.put(Envelopes(keys).seal(bare, secret))
    return vault, store


@pytest.mark.parametrize(
    "members",
    [
        f'"expires_in": {DIGITS}',
        f'"expires_in": {"9" * 5_000}',
        '"expires_in": 1e999',
        '"expires_in": NaN',
        '"scope": "' + "x" * 200_000 + '"',
        r'"scope": "half \ud83d"',
        '"token_type": "Bearer", "token_type": "bearer"',
    ],
)
async def test_whatever_its_numbers_and_texts_a_renewed_token_is_kept_and_the_credential_is_free(members: str) -> None:
    answer = f'{{"access_token": "fresh", "refresh_token": "refresh-1", {members}}}'.encode()
    async with serving(always(response(answer, content_type="application/json"))) as server:
        vault, store = await kept_at(server.url("/token"))
        renewed = await vault.renew(ALICE, "bank", "used")
        await vault.close()
    assert renewed is not None
    assert renewed.secret == "fresh"
    stored = await store.get(key_for(ALICE, "bank"))
    assert stored is not None
    assert (stored.renewed_by, stored.state) == ("", CredentialState.ACTIVE)
    assert len(stored.sealed) < 2_000


async def test_a_renewal_in_which_the_hub_itself_fails_says_that_nothing_was_sent_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> Secret:
        raise OverflowError("a defect")

    monkeypatch.setattr(TokenRequests, "refresh", fail)
    vault, store = await kept_at("https://id.example/token")
    with pytest.raises(ToolFailure) as failed:
        await vault.renew(ALICE, "bank", "used")
    assert failed.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert "Nothing was sent" in failed.value.error.message
    stored = await store.get(key_for(ALICE, "bank"))
    assert stored is not None
    assert (stored.renewed_by, stored.state) == ("", CredentialState.ACTIVE)
