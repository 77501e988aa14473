"""With whose token a server's list is read, where its source has no credentials in its configuration.

    the source's own login    an operator's (`toolhub sources login`), or none: some servers show their list to
                              everybody. The same connection carries calls without a caller's own credential.
    a caller's credential     (`auth.per_user`) of the one who has had one for the longest, and the same one as long as
                              it works. A connection of its own carries the reading, and no call.
    none of them              LoginNeeded, with the commands

Servers may show different tools to different callers. One list counts for all. Where another caller's token must take
over, tools that the hub knows keep their definition until the server changes it, and every other difference is a
change like any other, which waits for a person where the source has pins. Other callers' lists are compared once for
each credential; `diagnostics` tells what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from msgspec.structs import replace

from toolhub_service.adapters.mcp.failures import CredentialsRefused
from toolhub_service.adapters.mcp.login.user_sessions import Closable, Holder
from toolhub_service.credentials.secret import CallerCredential, PerUserTerms
from toolhub_service.credentials.vault import Vault, key_for
from toolhub_service.domain.call import GrantedCall, Principal
from toolhub_service.domain.credential import CredentialKey, CredentialKind, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition, Discovery, LoginNeeded
from toolhub_service.domain.tool import Primitive
from toolhub_service.guards.secret_mask import Mask

READERS_MAX: Final = 5
"""Callers whose credentials one reading tries."""
COMPARED_MAX: Final = 50
"""Callers whose differences are kept for `diagnostics`."""
_NAMES_MAX: Final = 5
_COMPARE_S: Final = 30.0
# Before a server that names no issuer is asked for one again.
_ASK_AGAIN_S: Final = 30.0

_ENDED: Final[Mapping[object, str]] = {
    "LOGIN_NEEDED": "Its login is not renewed any more by its authorization server.",
    "OTHER_SERVER": "Its login was made for another server.",
}

Found = TypeVar("Found")


class Connection(Closable, Protocol):
    def leave(self, why: str) -> None:
        """Leave it, and make another."""


Link = TypeVar("Link", bound=Connection)
Read = Callable[[Link, Mask], Awaitable[Discovery]]
Names = Callable[[Link, Mask], Awaitable[Mapping[str, JsonObject]]]
"""Reads the tools alone, by full name, in the server's words."""


class ListLogin(Generic[Link]):
    """Of one source."""

    def __init__(
        self,
        vault: Vault,
        terms: PerUserTerms,
        users: PerUserTerms | None,
        connect: Callable[[Holder], Link],
        secrets: Iterable[str] = (),
    ) -> None:
        """`terms`: of the source's own login; `users`: of its callers' credentials, if it takes any; `connect`: makes a
        connection that carries a credential, not started; `secrets`: of the configuration."""
        self._vault = vault
        self._terms = terms
        self._users = users
        self._secrets = tuple(secrets)
        self._connect = connect
        self.holder = Holder(None, self._renew)
        self.link = connect(self.holder)
        """The source's own connection."""
        self._has_issuer = False
        self._ask_again_s = 0.0
        self._reader: StoredCredential | None = None
        """Whose token the last reading was made with; None: the source's own, or none."""
        self._known: dict[str, Definition] = {}
        """The definitions of the last reading."""
        self._first_seen: dict[str, tuple[JsonObject, Definition]] = {}
        """Where the present reader is shown another definition than the one before: that, and the one that stays."""
        self._refused: set[str] = set()
        """Generations of credentials that the server has refused."""
        self._differences: dict[str, str] = {}
        """By generation of a compared credential; empty: its owner is shown the same."""
        self._comparing: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Put the present login on the source's own connection. Raises ToolFailure."""
        credential = None
        try:
            credential = await self._vault.of_source(self._terms.source)
        finally:
            before, self.holder.credential = self.holder.credential, credential
            # A session belongs to whoever began it.
            if _generation(before) != _generation(credential):
                self.link.leave("The source has another login.")

    async def read(self, read: Read[Link], names: Names[Link]) -> Discovery:
        """Return what the server offers. Raises ToolFailure: LoginNeeded where a login is missing."""
        ended = ""
        try:
            await self.take()
        except ToolFailure as failure:
            if failure.error.kind is not ErrorKind.PERMISSION_DENIED:
                raise
            ended = _ENDED.get(failure.error.details.get("state"), "Its login cannot be used.")
        try:
            found = await read(self.link, self._mask(self.holder.credential))
            reader = None
        except CredentialsRefused as refused:
            if self.holder.credential is not None:
                ended = "It refuses the token of its login."
            reader, read_by_caller = await self._read_as_caller(read)
            if read_by_caller is None:
                raise await self._login_failure(refused, ended) from refused
            found = read_by_caller
        found = self._keep_first_definitions(reader, found)
        self._compare_soon(names)
        return found

    def reads_as(self, principal: Principal) -> bool:
        """Return whether the list is read with the credential of this caller."""
        return self._reader is not None and self._reader.key == key_for(principal, self._terms.source)

    async def explain_refusal(self, call: GrantedCall, failure: ToolFailure) -> ToolFailure:
        """Return what to tell of a call that the server has refused for want of a login, or with the present one; that
        failure itself where nobody can log in."""
        if self.holder.credential is None and not await self._can_log_in():
            return failure
        why = "refused the token of its login" if self.holder.credential is not None else "wants a login"
        return refuse(
            ErrorKind.PERMISSION_DENIED,
            f"{call.spec.name} could not be called: its server {why}. It has not run. An operator logs in with: "
            f"{self._terms.command}",
            blames_upstream=False,
            source=self._terms.source,
            command=self._terms.command,
            state="CREDENTIAL_REFUSED" if self.holder.credential is not None else "NONE",
        )

    def diagnostics(self) -> list[str]:
        if self._reader is not None:
            lines = [f"its list is read with the credential of {_owner(self._reader.key)}"]
        else:
            lines = ["its list is read with its own login"] if self.holder.credential is not None else []
        return lines + [line for line in self._differences.values() if line]

    async def close(self) -> None:
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.wait({self._comparing})

    async def _renew(self, used: CallerCredential) -> CallerCredential | None:
        return await self._vault.renew_of_source(self._terms.source, used.secret)

    async def _read_as_caller(self, read: Read[Link]) -> tuple[StoredCredential | None, Discovery | None]:
        """Return what a caller is shown, and whose credential that was; None when nobody's works. Raises ToolFailure
        when a credential may work later."""
        away: ToolFailure | None = None
        for giver in (await self._givers())[:READERS_MAX]:
            try:
                found = await self._read_with(giver, read)
            except CredentialsRefused:
                self._refused.add(giver.generation)
            except ToolFailure as failure:
                if failure.error.kind is not ErrorKind.PERMISSION_DENIED:
                    away = failure
            else:
                if found is not None:
                    self._refused.discard(giver.generation)
                    return giver, found
        if away is not None:
            raise away
        return None, None

    async def _givers(self) -> list[StoredCredential]:
        """Return callers' credentials: the last reader's first, refused ones last."""
        if self._users is None:
            return []
        found = await self._vault.givers(self._terms.source)
        there = {giver.generation for giver in found}
        self._refused &= there
        self._differences = {each: line for each, line in self._differences.items() if each in there}
        last = self._reader.key if self._reader is not None else None
        return sorted(found, key=lambda giver: (giver.generation in self._refused, giver.key != last))

    async def _read_with(self, giver: StoredCredential, read: Callable[[Link, Mask], Awaitable[Found]]) -> Found | None:
        """Read over a connection with a caller's credential; None when it is gone. Raises ToolFailure."""
        credential = await self._vault.of_key(giver.key)
        if credential is None:
            return None

        async def renew(used: CallerCredential) -> CallerCredential | None:
            return await self._vault.renew_of_key(giver.key, used.secret)

        link = self._connect(Holder(credential, renew))
        link.start()
        try:
            return await read(link, self._mask(credential))
        finally:
            await link.close()

    def _mask(self, credential: CallerCredential | None) -> Mask:
        carried = (credential.secret, credential.value) if credential is not None else ()
        return Mask((*self._secrets, *carried))

    async def _login_failure(self, refused: CredentialsRefused, ended: str) -> ToolFailure:
        users, commands = self._users, []
        if await self._can_log_in():
            commands.append(self._terms.command)
        if users is not None and users.kind is not CredentialKind.EXCHANGED:
            commands.append(users.command)
        if commands:
            return LoginNeeded(self._terms.source, tuple(commands), ended)
        message = "It wants credentials (HTTP 401) and names no server that issues them: give it `headers` or `oauth`."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, source=self._terms.source, reason=message)

    async def _can_log_in(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if not self._has_issuer and now_s >= self._ask_again_s:
            self._has_issuer = await self._vault.has_issuer(self._terms.source)
            self._ask_again_s = now_s + _ASK_AGAIN_S
        return self._has_issuer

    def _keep_first_definitions(self, reader: StoredCredential | None, found: Discovery) -> Discovery:
        """Return the reading with the definitions that stay although another caller is shown others."""
        before, self._reader = self._reader, reader
        if reader is None or before is None:
            self._first_seen = {}
        elif before.key != reader.key:
            offered = {definition.spec.name: definition.remote for definition in found.definitions}
            known = {name: definition.remote for name, definition in self._known.items()}
            self._differences[reader.generation] = _difference(_owner(reader.key), offered, known)
            self._first_seen = {
                name: (offered[name], self._known[name])
                for name in offered.keys() & known.keys()
                if offered[name] != known[name]
            }
        definitions = tuple(self._first_definition(definition) for definition in found.definitions)
        self._known = {definition.spec.name: definition for definition in definitions}
        return replace(found, definitions=definitions)

    def _first_definition(self, definition: Definition) -> Definition:
        seen, kept = self._first_seen.get(definition.spec.name, (None, definition))
        if seen == definition.remote:
            return kept
        self._first_seen.pop(definition.spec.name, None)  # the server has changed it
        return definition

    def _compare_soon(self, names: Names[Link]) -> None:
        """Compare the list with that of another caller, in the background: a slow answer delays no reading."""
        if self._users is not None and (self._comparing is None or self._comparing.done()):
            self._comparing = asyncio.create_task(self._compare(names), name=f"lists of {self._terms.source}")

    async def _compare(self, names: Names[Link]) -> None:
        own = self._reader.key if self._reader is not None else None
        givers = await self._givers()
        new = [each for each in givers if each.key != own and each.generation not in self._differences]
        if not new or len(self._differences) >= COMPARED_MAX:
            return
        giver = new[0]
        self._differences[giver.generation] = ""  # once, whatever comes of it
        with suppress(ToolFailure, TimeoutError):  # calls of this caller say what is wrong
            async with asyncio.timeout(_COMPARE_S):
                shown = await self._read_with(giver, names)
            if shown is not None:
                counting = {name: each.remote for name, each in self._known.items() if _is_listed(each)}
                self._differences[giver.generation] = _difference(_owner(giver.key), shown, counting)


def _generation(credential: CallerCredential | None) -> str:
    return "" if credential is None else credential.generation


def _owner(key: CredentialKey) -> str:
    """Return the caller for a diagnostic; operators of one tenant must not learn of the principals of another."""
    return "a caller" if key.tenant else key.principal


def _is_listed(definition: Definition) -> bool:
    """Return whether the server's list of tools has it, not its lists of prompts, resources or skills."""
    return definition.spec.primitive is Primitive.TOOL and "frontmatter" not in definition.remote


def _difference(who: str, shown: Mapping[str, JsonObject], counting: Mapping[str, JsonObject]) -> str:
    """Return how the tools that a caller is shown differ from those that count; empty when they do not."""
    kinds = {
        "not shown": counting.keys() - shown.keys(),
        "shown besides": shown.keys() - counting.keys(),
        "defined otherwise": {name for name in counting.keys() & shown.keys() if counting[name] != shown[name]},
    }
    parts = [f"{what}: {_join_names(names)}" for what, names in kinds.items() if names]
    return f"the list of {who} differs; {'; '.join(parts)}" if parts else ""


def _join_names(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(sorted(names)[:_NAMES_MAX]) + more
