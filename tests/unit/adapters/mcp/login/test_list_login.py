"""Whose token a list is read with, in which order, and what a change of readers does to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.clock import FixedRandomness
from tests.fakes.remote_harness import LoopClock
from toolhub_service.adapters.mcp.failures import CredentialsRefused
from toolhub_service.adapters.mcp.login.list_login import ListLogin
from toolhub_service.adapters.mcp.login.user_sessions import Holder
from toolhub_service.credentials.sealing import SealingKeys
from toolhub_service.credentials.secret import OAuthSettings, PerUserTerms
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import Principal, Tenancy, TenantBounds
from toolhub_service.domain.credential import CredentialKind
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition, Discovery, LoginNeeded
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.memory.records import MemoryRecords

# An issuer is named, so that no server has to be asked whether one can log in.
OAUTH = OAuthSettings(issuer="https://login.example")
OWN = PerUserTerms("shop", CredentialKind.OAUTH, is_source_login=True, is_required=False, oauth=OAUTH)
CALLERS = PerUserTerms("shop", CredentialKind.HEADER)


@dataclass(eq=False)
class FakeLink:
    holder: Holder
    is_open: bool = False
    left: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    def leave(self, why: str) -> None:
        self.left.append(why)


class ListHarness:
    """A server that shows each of its users a list; nobody else any."""

    def __init__(self, tenants: Mapping[str, Tenancy] | None = None, **shown: Mapping[str, str]) -> None:
        self.shown = {f"{name}-secret-0123456789": dict(tools) for name, tools in shown.items()}
        self.links: list[FakeLink] = []
        self.store = Credentials(MemoryRecords(CREDENTIALS))
        keys, randomness, tenancy_of = SealingKeys({"k1": bytes(32)}), FixedRandomness(), (tenants or {}).get
        self.vault = Vault(self.store, lambda: keys, LoopClock(), randomness, tenancy_of)
        self.vault.open_source(CALLERS)
        self.vault.open_login(OWN)
        self.login = ListLogin(self.vault, OWN, CALLERS, self.connect)

    def connect(self, holder: Holder) -> FakeLink:
        self.links.append(FakeLink(holder))
        return self.links[-1]

    async def gives(self, name: str) -> None:
        await self.vault.set_header(Principal(name), "shop", f"{name}-secret-0123456789")

    def tools_of(self, link: FakeLink, mask: Mask) -> Mapping[str, JsonObject]:
        secret = link.holder.credential.secret if link.holder.credential is not None else ""
        assert not secret or mask.text(secret) != secret, "a list may repeat the token that it was read with"
        if secret not in self.shown:
            raise CredentialsRefused(refuse(ErrorKind.TOOL_UNAVAILABLE, "It wants others.").error)
        return {name: {"name": name, "description": text} for name, text in self.shown[secret].items()}

    async def list_of(self, link: FakeLink, mask: Mask) -> Discovery:
        return Discovery(tuple(a_definition(name, remote) for name, remote in self.tools_of(link, mask).items()))

    async def names_of(self, link: FakeLink, mask: Mask) -> Mapping[str, JsonObject]:
        return self.tools_of(link, mask)

    async def read(self) -> dict[str, str]:
        """Read, and wait for the comparison with other callers' lists."""
        found = await self.login.read(self.list_of, self.names_of)
        if self.login._comparing is not None:
            await self.login._comparing
        assert not any(link.is_open for link in self.links), "a caller's connection is closed after the reading"
        return {definition.spec.name: definition.spec.description for definition in found.definitions}


def a_definition(name: str, remote: JsonObject) -> Definition:
    spec: Any = {"input_schema": {"type": "object"}, "output_schema": {}, "source": "shop"}
    return Definition(ToolSpec(name, ToolKind.MCP, str(remote["description"]), **spec), remote)


async def test_a_list_that_everybody_is_shown_is_read_without_a_token() -> None:
    harness = ListHarness(alice={"search": "Hers."})
    harness.shown[""] = {"search": "For all."}
    await harness.gives("alice")
    assert await harness.read() == {"search": "For all."}


async def test_nobodys_token_leads_to_the_commands_and_a_refused_one_is_tried_last() -> None:
    harness = ListHarness(alice={"search": "Search."})
    with pytest.raises(LoginNeeded) as needed:
        await harness.read()
    assert needed.value.commands == ("toolhub sources login shop", "toolhub credentials set shop")
    await harness.gives("bob")
    with pytest.raises(LoginNeeded):
        await harness.read()
    await harness.gives("alice")
    assert await harness.read() == {"search": "Search."}
    before = len(harness.links)
    assert await harness.read() == {"search": "Search."}
    assert len(harness.links) == before + 1, "the one whose token works is asked first, and no other again"


async def test_the_same_callers_token_is_used_as_long_as_it_works() -> None:
    harness = ListHarness(alice={"search": "Hers."}, bob={"search": "His."})
    await harness.gives("bob")
    assert await harness.read() == {"search": "His."}
    await harness.gives("alice")
    assert await harness.read() == {"search": "His."}
    assert "its list is read with the credential of bob" in harness.login.diagnostics()
    assert "the list of alice differs; defined otherwise: search" in harness.login.diagnostics()


async def test_another_readers_words_replace_no_known_definition_until_the_server_changes_them() -> None:
    harness = ListHarness(alice={"search": "Hers.", "draw": "Draw."}, bob={"search": "His.", "paint": "Paint."})
    await harness.gives("alice")
    assert await harness.read() == {"search": "Hers.", "draw": "Draw."}
    await harness.gives("bob")
    del harness.shown["alice-secret-0123456789"]
    for _ in range(2):
        assert await harness.read() == {"search": "Hers.", "paint": "Paint."}
    told = "\n".join(harness.login.diagnostics())
    assert "the list of bob differs; not shown: draw; shown besides: paint; defined otherwise: search" in told
    harness.shown["bob-secret-0123456789"]["search"] = "His, newly."
    assert await harness.read() == {"search": "His, newly.", "paint": "Paint."}
    harness.shown["bob-secret-0123456789"]["search"] = "His."
    assert await harness.read() == {"search": "His.", "paint": "Paint."}, "from then on the server's words count"


class Tenant:
    """Sees the source, which is its own or everybody's."""

    name, bounds = "acme", TenantBounds()

    def __init__(self, *, owns: bool) -> None:
        self._owns = owns

    def holds(self, principal_id: str) -> bool:
        return principal_id == "alice"

    def shows(self, source: str) -> bool:
        return source == "shop"

    def owns(self, source: str) -> bool:
        return self._owns


async def test_a_list_that_other_tenants_see_is_not_read_with_the_token_of_one_tenants_caller() -> None:
    for owns in (True, False):
        harness = ListHarness({"alice": Tenant(owns=owns)}, alice={"search": "Search at Acme."})
        await harness.gives("alice")
        if owns:
            assert await harness.read() == {"search": "Search at Acme."}
        else:
            with pytest.raises(LoginNeeded):
                await harness.read()


async def test_callers_of_a_tenant_are_not_named_to_others() -> None:
    harness = ListHarness(alice={"search": "Search."})
    await harness.vault.set_header(Principal("alice", tenant="acme"), "shop", "alice-secret-0123456789")
    await harness.read()
    assert harness.login.diagnostics() == ["its list is read with the credential of a caller"]
