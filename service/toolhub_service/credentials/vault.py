"""The vault: one credential for a tenant's principal and a source, read by step 6 of a call of that principal; and for
each source one login of its own, made by an operator, which its list of tools is read with.

    no usable credential            PERMISSION_DENIED with the command that gives one: nothing is sent
    store or key unavailable        TOOL_UNAVAILABLE

The store is read for every call, so that a revocation takes effect at once in every process. Secrets are returned by
`credential` only; lists show what `StoredCredential` has in clear text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import structs

from toolhub_service.credentials.access_tokens import Exchanges, Renewals, Renewed
from toolhub_service.credentials.login import Logins, may_lead_back
from toolhub_service.credentials.sealing import SealingKeys
from toolhub_service.credentials.secret import (
    CallerCredential,
    Envelopes,
    PerUserTerms,
    Secret,
    missing,
    of_another_server,
)
from toolhub_service.credentials.token_requests import TokenRequests
from toolhub_service.domain.call import Principal, SubjectToken, Tenancy
from toolhub_service.domain.credential import (
    CredentialKey,
    CredentialKind,
    CredentialState,
    CredentialStore,
    StoredCredential,
)
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.guards.headers import check_request_headers

VALUE_MAX_CHARS: Final = 8_000
_TRIES: Final = 8
"""Attempts at a change when others change the record first."""
_STORE_PAGE: Final = 500
"""Records read at once from the store, for a page."""
_PAUSE_S: Final = 30.0
"""Seconds for which a token is not renewed again because a server refuses it."""
_REFUSED_MAX: Final = 10_000


class _Opened(NamedTuple):
    """The parts that exist once there are keys."""

    envelopes: Envelopes
    requests: TokenRequests
    renewals: Renewals
    logins: Logins
    exchanges: Exchanges


class Vault:
    """The vault of a hub. Methods with a principal require a verified one."""

    def __init__(
        self,
        store: CredentialStore,
        keys: Callable[[], SealingKeys],
        clock: Clock,
        randomness: Randomness,
        tenancy_of: Callable[[str], Tenancy | None] = lambda _: None,
    ) -> None:
        """`keys` is called when a source first needs keys, and raises ValueError for the operator; `tenancy_of`: as of
        `TenantDirectory`."""
        self._store = store
        self._make_keys = keys
        self._opened: _Opened | None = None
        self._clock = clock
        self._randomness = randomness
        self._tenancy_of = tenancy_of
        self._sources: dict[str, PerUserTerms] = {}
        self._hosts: set[str] = set()
        """Sources that are hosts of the built-in HTTP tools."""
        self._logins: dict[str, PerUserTerms] = {}
        """Of sources that an operator can log in at."""
        self._followers: dict[str, Callable[[], None]] = {}
        self._refused_s: dict[CredentialKey, float] = {}
        """When a server last refused a token that was then renewed."""

    def open_source(self, terms: PerUserTerms) -> None:
        """Accept callers' credentials for a source. Raises ValueError where there are no keys to seal them with."""
        if terms.source in self._hosts:
            raise ValueError(f"`{terms.source}` is also the name of a host of `credentials.hosts`: rename one of them")
        _ = self._open
        self._sources[terms.source] = terms

    def open_host(self, terms: PerUserTerms) -> None:
        """The same for a host, for the hub's lifetime."""
        self.open_source(terms)
        self._hosts.add(terms.source)

    def open_login(self, terms: PerUserTerms) -> None:
        """Accept an operator's login for a source. Keys are needed only when there is one."""
        self._logins[terms.source] = terms

    def follow(self, source: str, changed: Callable[[], None]) -> None:
        """Call `changed` when a credential of the source was given or revoked at this hub."""
        self._followers[source] = changed

    def close_source(self, source: str) -> None:
        """Return no more credentials for it; stored ones stay."""
        if source not in self._hosts:
            self._sources.pop(source, None)
            self._logins.pop(source, None)
            self._followers.pop(source, None)

    async def of_source(self, source: str) -> CallerCredential | None:
        """Return the source's own login; None where nobody has logged in. Raises ToolFailure, LOGIN_NEEDED too."""
        return await self._credential(self._logins[source], login_key(source))

    async def renew_of_source(self, source: str, used: str) -> CallerCredential | None:
        """As `renew`, for the source's own login."""
        return await self._renew_after(self._logins.get(source), login_key(source), used)

    async def of_key(self, key: CredentialKey) -> CallerCredential | None:
        """Return a caller's stored credential, for reading what its source offers. Raises ToolFailure."""
        terms = self._sources.get(key.source)
        if terms is None or terms.kind is CredentialKind.EXCHANGED:
            return None
        return await self._credential(terms, key)

    async def renew_of_key(self, key: CredentialKey, used: str) -> CallerCredential | None:
        """As `renew`."""
        return await self._renew_after(self._sources.get(key.source), key, used)

    async def givers(self, source: str) -> list[StoredCredential]:
        """Return the usable credentials of callers with which the list of the source may be read for all, the oldest
        first; of the 500 changed last."""
        terms = self._sources.get(source)
        if terms is None:
            return []
        page = await self._store.page(owner=None, source=source, after=None, limit=_STORE_PAGE)
        fit = [
            each
            for each in page
            if each.principal and each.kind is terms.kind and each.state is CredentialState.ACTIVE and each.sealed
            if self._speaks_for_all(each.key)
        ]
        return sorted(fit, key=lambda each: (each.created_at_unix_ms, each.key))

    def _speaks_for_all(self, key: CredentialKey) -> bool:
        """Return whether what this caller is shown may be shown to all who see the source: not to other tenants."""
        tenancy = self._tenancy_of(key.principal)
        return tenancy is None or tenancy.owns(key.source)

    async def has_issuer(self, source: str) -> bool:
        """Return whether a login at the source is possible: its authorization server is configured, or named by its
        server."""
        try:
            logins = self._open.logins
        except ValueError:
            return False  # there are no keys to seal a login with; `toolhub doctor` says so
        return await logins.names_issuer(self._logins[source])

    async def credential(self, principal: Principal, source: str) -> CallerCredential | None:
        """Return the caller's credential; None where there is none and the source serves such callers all the same.

        Raises ToolFailure.
        """
        terms = self._sources.get(source)
        if terms is None:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"The source {source} has been stopped.", source=source)
        if terms.kind is CredentialKind.EXCHANGED:
            return _credential_of_exchange(terms, *await self._open.exchanges.token(terms, principal))
        return await self._credential(terms, key_for(principal, source))

    async def _credential(self, terms: PerUserTerms, key: CredentialKey) -> CallerCredential | None:
        stored = await self._store.get(key)
        if stored is None or stored.is_removed or stored.kind is not terms.kind:
            if terms.is_required:
                raise missing(terms)
            return None
        if stored.state is not CredentialState.ACTIVE:
            raise missing(terms, stored.state)
        secret = self._open.envelopes.open(terms, stored)
        if secret.server == terms.origin and secret.is_due(self._clock.unix_ms()):
            stored, secret = await self._renew_due(terms, stored, secret)
        return _credential_from(terms, stored, secret)

    async def renew(self, principal: Principal, source: str, used: str) -> CallerCredential | None:
        """Return a credential other than that secret, which the server has just refused with 401; None when there is
        none and the refusal is final. Raises ToolFailure."""
        return await self._renew_after(self._sources.get(source), key_for(principal, source), used, principal)

    async def _renew_after(
        self, terms: PerUserTerms | None, key: CredentialKey, used: str, principal: Principal | None = None
    ) -> CallerCredential | None:
        if terms is None or terms.kind is CredentialKind.HEADER:
            return None
        now_s = self._clock.monotonic_s()
        if self._refused_s.get(key, -_PAUSE_S) + _PAUSE_S > now_s:
            return None  # a server that accepts no token at all must not make each call renew one
        if len(self._refused_s) >= _REFUSED_MAX:
            # Dictionaries keep insertion order, so this is the oldest one.
            del self._refused_s[next(iter(self._refused_s))]
        self._refused_s[key] = now_s
        if principal is not None and terms.kind is CredentialKind.EXCHANGED:
            return _credential_of_exchange(terms, *await self._open.exchanges.token(terms, principal, used))
        return _credential_from(terms, *await self._open.renewals.renew(terms, key, used))

    async def _renew_due(self, terms: PerUserTerms, stored: StoredCredential, secret: Secret) -> Renewed:
        """Renew the token; a still valid one is used where its server cannot be asked for another."""
        try:
            return await self._open.renewals.renew(terms, stored.key, secret.value)
        except ToolFailure as failure:
            is_away = failure.error.kind is ErrorKind.TOOL_UNAVAILABLE
            if is_away and secret.expires_at_unix_ms > self._clock.unix_ms():
                return stored, secret
            raise

    async def begin_login(
        self, principal: Principal, source: str, redirect_uri: str, *, for_source: bool = False
    ) -> tuple[str, str]:
        """Return the URL for a person's browser, and the sealed login. `for_source`: an operator's for the source
        itself. Raises HubFailure."""
        terms, key = self._login_terms(principal, source, for_source=for_source), key_for(principal, source)
        return await self._open.logins.begin(terms, key, redirect_uri, self._clock.unix_ms())

    async def complete_login(
        self, principal: Principal, login: str, code: str, state: str, issuer: str, *, for_source: bool = False
    ) -> StoredCredential:
        """Redeem the code and store its tokens. Raises HubFailure, ToolFailure."""
        source = login.partition(":")[2].partition(":")[0]
        terms = self._login_terms(principal, source, for_source=for_source)
        begun = self._open.logins.open_login(terms, key_for(principal, source), login)
        secret = await self._open.logins.complete(terms, begun, code, (state, issuer), self._clock.unix_ms())
        key = login_key(source) if for_source else key_for(principal, source)
        # A new login may be renewed at once, whatever was refused before it.
        self._refused_s.pop(key, None)
        return await self._keep(key, CredentialKind.OAUTH, secret)

    async def set_header(self, principal: Principal, source: str, value: str) -> StoredCredential:
        """Store the caller's value, replacing an earlier one. Raises HubFailure, ToolFailure."""
        terms = self._terms_of_source(principal, source, CredentialKind.HEADER)
        secret = value.strip()
        problem = _problem_of(terms, secret)
        if problem:
            raise HubFailure(Reason.LOGIN_REFUSED, f"The value cannot be kept: {problem}")
        return await self._keep(key_for(principal, source), CredentialKind.HEADER, Secret(secret, server=terms.origin))

    async def page(
        self, principal: Principal, *, everybody: bool, source: str, after: tuple[int, str] | None, limit: int
    ) -> list[StoredCredential]:
        """Return the caller's own, or all whose owners it may know of; the latest changed first."""
        owner = None if everybody else (principal.tenant, principal.id)
        found: list[StoredCredential] = []
        while len(found) < limit:
            page = await self._store.page(owner=owner, source=source, after=after, limit=_STORE_PAGE)
            # The store knows no tenants: records of other tenants are omitted here, and more are read.
            there = (each for each in page if not each.is_removed)
            found += [each for each in there if not everybody or _may_know(principal, each.key)]
            if len(page) < _STORE_PAGE:
                break
            after = self._store.place(page[-1])
        return found[:limit]

    async def revoke(self, key: CredentialKey) -> bool:
        """Remove a credential, and return whether its authorization server has revoked it, too. Raises HubFailure when
        there is none."""
        # Removed here first: whatever the authorization server answers, the hub never uses it again.
        stored = await self._remove_record(key)
        terms = self._sources.get(key.source) if key.principal else self._logins.get(key.source)
        self._tell(key.source)
        if terms is None or stored.kind is CredentialKind.HEADER:
            return False
        try:
            secret = self._open.envelopes.open(terms, stored)
        except ToolFailure:
            return False  # nobody can open it any more, and nobody will use it
        return await self._open.requests.revoke(terms, secret)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.renewals.close()
            await self._opened.requests.close()

    async def read_record(self, key: CredentialKey, viewer: Principal | None = None) -> StoredCredential:
        """Return the record. Raises HubFailure when there is none, or none that the viewer may know of."""
        stored = await self._store.get(key)
        if stored is None or stored.is_removed or (viewer is not None and not _may_know(viewer, key)):
            raise HubFailure(Reason.CREDENTIAL_NOT_FOUND, f"There is no such credential for source `{key.source}`.")
        return stored

    def _terms_of_source(self, principal: Principal, source: str, kind: CredentialKind) -> PerUserTerms:
        terms = self._sources.get(source) if principal.may_know_source(source) else None
        if terms is None:
            message = f"The source `{source}` takes no credentials of its callers: it is not configured, or has no "
            raise HubFailure(Reason.CREDENTIAL_NOT_FOUND, f"{message}`auth.per_user`.")
        if terms.kind is not kind:
            message = f"`{source}` takes its callers' credentials in another way. Run: {terms.command}"
            raise HubFailure(Reason.LOGIN_REFUSED, message)
        return terms

    def server_of_logins(self, principal: Principal, source: str, redirect_uri: str) -> str:
        """Return the origin of the source's server if the caller can log in there with that redirect; else empty."""
        terms = self._sources.get(source) if principal.may_know_source(source) else None
        if terms is None or terms.kind is not CredentialKind.OAUTH or not may_lead_back(terms, redirect_uri):
            return ""
        return terms.origin

    def _login_terms(self, principal: Principal, source: str, *, for_source: bool) -> PerUserTerms:
        if not for_source:
            return self._terms_of_source(principal, source, CredentialKind.OAUTH)
        terms = self._logins.get(source) if _may_know(principal, login_key(source)) else None
        if terms is None:
            message = (
                f"The source `{source}` takes no login: it is not configured, is not an MCP server at a `url`, or "
            )
            raise HubFailure(Reason.CREDENTIAL_NOT_FOUND, f"{message}has its own credentials in sources.yaml.")
        try:
            _ = self._open
        except ValueError as unfit:
            raise HubFailure(Reason.LOGIN_REFUSED, f"The login cannot be kept: {unfit}.") from unfit
        return terms

    def _tell(self, source: str) -> None:
        if (changed := self._followers.get(source)) is not None:
            changed()

    async def _keep(self, key: CredentialKey, kind: CredentialKind, secret: Secret) -> StoredCredential:
        """Store the record, replacing any other."""
        for _ in range(_TRIES):
            former = await self._store.get(key)
            stored = self._open.envelopes.seal(self._new(key, kind, former), secret)
            if await self._store.put(stored):
                self._tell(key.source)
                return stored
            # Lets the process's other writer continue before the record is read again.
            await asyncio.sleep(0)
        raise _contention_failure()

    async def _remove_record(self, key: CredentialKey) -> StoredCredential:
        """Return the removed credential. Raises HubFailure when there is none."""
        for _ in range(_TRIES):
            stored = await self.read_record(key)
            # A hub of the previous version, which does not know removed records, treats it as one that is not renewed.
            left = structs.replace(
                stored,
                sealed=b"",
                key_id="",
                scopes=(),
                state=CredentialState.LOGIN_NEEDED,
                renewed_by="",
                renewed_until_unix_ms=0,
                changed_at_unix_ms=self._clock.unix_ms(),
                version=stored.version + 1,
            )
            if await self._store.put(left):
                return stored
            await asyncio.sleep(0)
        raise _contention_failure()

    def _new(self, key: CredentialKey, kind: CredentialKind, former: StoredCredential | None) -> StoredCredential:
        now_unix_ms = self._clock.unix_ms()
        return StoredCredential(
            tenant=key.tenant,
            principal=key.principal,
            source=key.source,
            kind=kind,
            key_id="",
            sealed=b"",
            generation=self._randomness.token_hex(16),
            created_at_unix_ms=now_unix_ms,
            changed_at_unix_ms=now_unix_ms,
            version=former.version + 1 if former is not None else 1,
        )

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            keys = self._make_keys()
            envelopes, requests = Envelopes(keys), TokenRequests()
            renewals = Renewals(self._store, envelopes, requests, self._clock, self._randomness)
            self._opened = _Opened(
                envelopes, requests, renewals, Logins(requests, keys), Exchanges(requests, self._clock)
            )
        return self._opened


def _credential_of_exchange(terms: PerUserTerms, subject: SubjectToken, secret: Secret) -> CallerCredential:
    """Return the credential; each exchanged token has a generation of its own: another one acting for the user gets
    another session."""
    value = f"{terms.prefix}{secret.value}"
    return CallerCredential(terms.header, value, secret.value, subject.digest[:32], CredentialKind.EXCHANGED)


def _credential_from(terms: PerUserTerms, stored: StoredCredential, secret: Secret) -> CallerCredential:
    """Return the credential. Raises ToolFailure for one given to another server, also for one that has replaced the
    first meanwhile."""
    # An operator may have changed the source's address: the new server must not get the old one's secret.
    if secret.server != terms.origin:
        raise of_another_server(terms)
    return terms.credential_from(stored, secret)


def _contention_failure() -> ToolFailure:
    return refuse(ErrorKind.TOOL_UNAVAILABLE, "The credential is being changed by somebody else. Try again.")


def key_for(principal: Principal, source: str) -> CredentialKey:
    return CredentialKey(principal.tenant, principal.id, source)


def login_key(source: str) -> CredentialKey:
    """Return the key of the source's own login; no principal has an empty id."""
    return CredentialKey("", "", source)


def _may_know(viewer: Principal, key: CredentialKey) -> bool:
    """Return whether a role may show it the credential: a source's own login concerns all who may change the source."""
    if key.principal:
        return viewer.may_know(key.principal)
    return viewer.tenancy is None or viewer.tenancy.owns(key.source)


def _problem_of(terms: PerUserTerms, secret: str) -> str:
    """Return why it cannot be sent; empty: it can."""
    if not secret or len(secret) > VALUE_MAX_CHARS:
        return f"it must have 1 to {VALUE_MAX_CHARS} characters."
    try:
        check_request_headers({terms.header: f"{terms.prefix}{secret}"})
    except ToolFailure as failure:
        return failure.error.message
    return ""
