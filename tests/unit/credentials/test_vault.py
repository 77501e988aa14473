"""The vault over a store that another writer changes, too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from tests.fakes.clock import FixedRandomness
from tests.fakes.remote_harness import LoopClock
from toolhub_service.credentials import vault as vault_module
from toolhub_service.credentials.access_tokens import Exchanges
from toolhub_service.credentials.sealing import SealingKeys
from toolhub_service.credentials.secret import OAuthSettings, PerUserTerms, Secret
from toolhub_service.credentials.token_requests import Answer, TokenRequests
from toolhub_service.credentials.vault import Vault, key_for
from toolhub_service.domain.call import Principal, SubjectToken, TenantBounds
from toolhub_service.domain.credential import CredentialKind, CredentialStore
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.memory.records import MemoryRecords

ALICE, BOB = Principal("alice", tenant="acme"), Principal("bob", tenant="acme")
NEIGHBOUR = Principal("alice", tenant="other")
SHOP = PerUserTerms("shop", CredentialKind.HEADER)
SECRET = "alice-secret-0123456789"


def a_vault(store: CredentialStore, keys: dict[str, bytes] | None = None) -> Vault:
    vault = Vault(store, lambda: SealingKeys(keys or {"k1": bytes(32)}), LoopClock(), FixedRandomness())
    vault.open_source(SHOP)
    return vault


@pytest.fixture
def store() -> CredentialStore:
    return Credentials(MemoryRecords(CREDENTIALS))


async def refused(vault: Vault, principal: Principal = ALICE) -> tuple[ErrorKind, object]:
    with pytest.raises(ToolFailure) as failure:
        await vault.credential(principal, "shop")
    assert SECRET not in repr(failure.value.error)
    assert failure.value.error.blames_upstream is False
    details = failure.value.error.details
    return failure.value.error.kind, details.get("state", details.get("reason"))


@pytest.mark.promise("credentials.own")
async def test_a_credential_is_its_owners_in_their_tenant_alone(store: CredentialStore) -> None:
    vault = a_vault(store)
    await vault.set_header(ALICE, "shop", SECRET)
    given = await vault.credential(ALICE, "shop")
    assert given is not None
    assert (given.header, given.value) == ("authorization", f"Bearer {SECRET}")
    for stranger in (BOB, NEIGHBOUR, Principal("alice"), Principal("acme", tenant="alice")):
        assert await refused(vault, stranger) == (ErrorKind.PERMISSION_DENIED, "NONE")
    assert [each.principal for each in await vault.page(ALICE, everybody=False, source="", after=None, limit=9)] == [
        "alice"
    ]
    assert not await vault.page(NEIGHBOUR, everybody=False, source="", after=None, limit=9)


@pytest.mark.promise("credentials.sealed")
async def test_a_record_that_was_changed_or_moved_in_the_store_gives_nothing(store: CredentialStore) -> None:
    vault = a_vault(store)
    kept = await vault.set_header(ALICE, "shop", SECRET)
    assert SECRET.encode() not in kept.sealed
    for thief in (BOB, NEIGHBOUR):
        stolen = replace(kept, tenant=thief.tenant, principal=thief.id, version=1)
        assert await store.put(stolen)
        assert await refused(vault, thief) == (ErrorKind.PERMISSION_DENIED, "DAMAGED")
    swapped = await vault.set_header(Principal("carol", tenant="acme"), "shop", "carol-secret-0123456789")
    changes = (
        replace(kept, sealed=swapped.sealed, generation=swapped.generation),
        replace(kept, sealed=kept.sealed[:-1] + bytes([kept.sealed[-1] ^ 1])),
        replace(kept, generation="another login"),
    )
    for version, changed in enumerate(changes, 2):
        assert await store.put(replace(changed, version=version))
        assert await refused(vault) == (ErrorKind.PERMISSION_DENIED, "DAMAGED")


async def test_a_new_key_opens_what_the_old_one_sealed_and_seals_what_is_written_from_then_on(
    store: CredentialStore,
) -> None:
    old, new = {"k1": bytes(32)}, {"k2": bytes(range(32)), "k1": bytes(32)}
    await a_vault(store, old).set_header(ALICE, "shop", SECRET)
    rotated = a_vault(store, new)
    given = await rotated.credential(ALICE, "shop")
    assert given is not None
    assert given.secret == SECRET
    assert (await rotated.set_header(ALICE, "shop", SECRET)).key_id == "k2"
    assert await refused(a_vault(store, old)) == (ErrorKind.TOOL_UNAVAILABLE, "SEALING_KEY_MISSING")


async def test_one_of_several_values_given_at_once_is_kept_whole(store: CredentialStore) -> None:
    vaults = [a_vault(store) for _ in range(4)]
    values = [f"value-{at}-0123456789" for at in range(4)]
    await asyncio.gather(*(vault.set_header(ALICE, "shop", value) for vault, value in zip(vaults, values, strict=True)))
    given = await vaults[0].credential(ALICE, "shop")
    assert given is not None
    assert given.secret in values
    stored = await store.get(key_for(ALICE, "shop"))
    assert stored is not None
    assert stored.version == 4


async def test_a_credential_that_cannot_be_sent_is_not_stored(store: CredentialStore) -> None:
    vault = a_vault(store)
    for value in ("", " ", "two\r\nX-Admin: 1", "schlüssel", "x" * 9_000):
        with pytest.raises(HubFailure) as failure:
            await vault.set_header(ALICE, "shop", value)
        assert failure.value.reason.name == "LOGIN_REFUSED"
        assert not value.strip() or value not in failure.value.message
    with pytest.raises(HubFailure) as unknown:
        await vault.set_header(ALICE, "flows", SECRET)
    assert unknown.value.reason.name == "CREDENTIAL_NOT_FOUND"


class AcmeVault:
    """The tenancy of its operators."""

    name = "acme"
    bounds = TenantBounds()

    def holds(self, principal_id: str) -> bool:
        return principal_id.startswith("acme-")

    def shows(self, source: str) -> bool:
        return source == "shop"

    owns = shows


async def test_an_operator_of_a_tenant_sees_no_credentials_of_another(store: CredentialStore) -> None:
    vault = a_vault(store)
    vault.open_source(PerUserTerms("theirs", CredentialKind.HEADER))
    for name in ("acme-a", "other-b", "acme-c"):
        await vault.set_header(Principal(name), "shop", SECRET)
    operator = Principal("acme-boss", tenancy=AcmeVault())
    seen = await vault.page(operator, everybody=True, source="", after=None, limit=9)
    assert {each.principal for each in seen} == {"acme-a", "acme-c"}
    refusals = []
    for key in (key_for(Principal("other-b"), "shop"), key_for(Principal("never-was"), "shop")):
        with pytest.raises(HubFailure) as failure:
            await vault.read_record(key, operator)
        refusals.append((failure.value.reason, failure.value.message))
    for source in ("theirs", "never-was"):
        with pytest.raises(HubFailure) as failure:
            await vault.set_header(operator, source, SECRET)
        refusals.append((failure.value.reason, failure.value.message.replace(source, "shop")))
    assert refusals[0] == refusals[1]
    assert refusals[2] == refusals[3]


@pytest.mark.promise("credentials.own")
async def test_a_credential_goes_to_the_server_that_it_was_given_for_and_to_no_other(store: CredentialStore) -> None:
    def at(url: str) -> PerUserTerms:
        return PerUserTerms("shop", CredentialKind.HEADER, server_url=url)

    vault = a_vault(store)
    vault.open_source(at("https://shop.example/mcp"))
    await vault.set_header(ALICE, "shop", SECRET)
    vault.open_source(at("https://shop.example:443/v2/mcp"))
    assert await vault.credential(ALICE, "shop") is not None
    for url in ("https://evil.example/mcp", "http://shop.example/mcp", "https://shop.example:8443/mcp"):
        vault.open_source(at(url))
        assert await refused(vault) == (ErrorKind.PERMISSION_DENIED, "OTHER_SERVER")
        await vault.set_header(BOB, "shop", SECRET)
        assert await vault.credential(BOB, "shop") is not None


class NamedTokens(TokenRequests):
    """An authorization server that says for whom each token is."""

    async def exchange(self, terms: PerUserTerms, subject: SubjectToken, now_unix_ms: int) -> Secret:
        return Secret(f"{subject.digest} at {terms.server_url}")


async def test_a_token_that_was_exchanged_for_one_server_is_not_used_at_the_next_one_of_its_source() -> None:
    exchanges, shown = Exchanges(NamedTokens(), LoopClock()), Principal("ann", subject_token=SubjectToken("a", "ann"))
    for url in ("https://shop.example", "https://evil.example"):
        terms = PerUserTerms("shop", CredentialKind.EXCHANGED, server_url=url)
        for _ in range(2):
            assert (await exchanges.token(terms, shown))[1].value == f"ann at {url}"


ISSUER = "https://id.example"
BANK = PerUserTerms(
    "bank",
    CredentialKind.OAUTH,
    server_url="https://bank.example",
    oauth=OAuthSettings(issuer=ISSUER, client_id="hub"),
)


class AuthorizationServer(TokenRequests):
    """Numbers the tokens that it gives; `asked` is set while a refresh waits for `may_answer`."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0
        self.revoked: list[str] = []
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.is_spent = False
        self.forms: list[Mapping[str, str]] = []
        """What tokens were asked for with."""

    async def ask(
        self, settings: Any, server_url: Any, url: Any, form: Any = None, authorization: Any = "", document: Any = None
    ) -> Answer:
        if form is None:
            places = {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint")}
            revocation, methods = (
                {"revocation_endpoint": f"{ISSUER}/revoke"},
                {"code_challenge_methods_supported": ["S256"]},
            )
            return Answer(200, {"issuer": ISSUER, **places, **revocation, **methods}, "")
        assert document is None, "nothing was registered"
        self.forms.append({**form, "authorization": authorization})
        if url.endswith("/revoke"):
            self.revoked.append(form["token"])
            return Answer(200, {}, "")
        if form["grant_type"] == "refresh_token":
            self.asked.set()
            await self.may_answer.wait()
            if self.is_spent:
                return Answer(400, {"error": "invalid_grant"}, "")
        self.given += 1
        return Answer(200, {"access_token": f"access-{self.given}", "refresh_token": f"refresh-{self.given}"}, "")


async def logged_in(vault: Vault) -> None:
    url, login = await vault.begin_login(ALICE, "bank", "http://127.0.0.1:9/callback")
    await vault.complete_login(ALICE, login, "code", parse_qs(urlsplit(url).query)["state"][0], ISSUER)


@pytest.mark.promise("credentials.refresh")
@pytest.mark.parametrize("is_spent", [False, True], ids=["refreshed", "refused"])
@pytest.mark.parametrize("logins", [0, 1, 2, 3])
async def test_a_refresh_that_a_revocation_and_new_logins_overtake_brings_nothing_back(
    store: CredentialStore, monkeypatch: pytest.MonkeyPatch, logins: int, is_spent: bool
) -> None:
    server = AuthorizationServer()
    server.is_spent = is_spent
    monkeypatch.setattr(vault_module, "TokenRequests", lambda: server)
    refreshing, other = a_vault(store), a_vault(store)
    for vault in (refreshing, other):
        vault.open_source(BANK)
    await logged_in(other)
    used = await refreshing.credential(ALICE, "bank")
    assert used is not None
    refresh = asyncio.create_task(refreshing.renew(ALICE, "bank", used.secret))
    await server.asked.wait()
    assert await other.revoke(key_for(ALICE, "bank"))
    for _ in range(logins):
        await logged_in(other)
    server.may_answer.set()
    if not logins:
        with pytest.raises(ToolFailure) as failure:
            await refresh
        assert failure.value.error.details["state"] == "NONE"
    else:
        last = f"access-{1 + logins}"
        renewed, after = await refresh, await other.credential(ALICE, "bank")
        assert renewed is not None
        assert after is not None
        assert (renewed.secret, after.secret) == (last, last)
    lost = [] if is_spent else [f"refresh-{2 + logins}"]
    assert server.revoked == ["refresh-1", *lost], "what nobody keeps is revoked"


async def test_a_hub_whose_metadata_stands_at_a_url_is_known_by_that_url_and_has_no_secret(
    store: CredentialStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Client ID Metadata Document (draft-ietf-oauth-client-id-metadata-document): the URL is the client's id, and it
    is a public client, so that PKCE alone holds the code."""
    server, document = AuthorizationServer(), "https://hub.example/oauth/client.json"
    monkeypatch.setattr(vault_module, "TokenRequests", lambda: server)
    vault = a_vault(store)
    own = OAuthSettings(issuer=ISSUER, client_id=document)
    vault.open_source(PerUserTerms("bank", CredentialKind.OAUTH, server_url="https://bank.example", oauth=own))
    url, _ = await vault.begin_login(ALICE, "bank", "http://127.0.0.1:9/callback")
    assert parse_qs(urlsplit(url).query)["client_id"] == [document]
    await logged_in(vault)
    (form,) = server.forms
    assert (form["client_id"], form["authorization"], "client_secret" in form) == (document, "", False)
    assert form["code_verifier"]
