"""Access tokens, fetched once for all concurrent callers: renewed (RFC 6749 §6), exchanged (RFC 8693)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from msgspec.structs import replace

from toolhub_service.credentials.secret import Envelopes, PerUserTerms, Secret, missing
from toolhub_service.credentials.token_requests import TIMEOUT_S, GrantRefused, TokenRequests, Unanswered, Unreachable
from toolhub_service.domain.call import Principal, SubjectToken
from toolhub_service.domain.credential import CredentialKey, CredentialState, CredentialStore, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Clock, Randomness

LEASE_MS: Final = int(3 * TIMEOUT_S * 1_000)
"""Seconds for which others wait for the renewing process: longer than its request can take."""
_POLL_S: Final = 0.05
_EXCHANGED_MAX: Final = 10_000
"""Most exchanged tokens in memory; beyond, the oldest is dropped and requested again."""
_UNKNOWN_LIFE_MS: Final = 60_000
Renewed = tuple[StoredCredential, Secret]


class Renewals:
    """Renews tokens that have expired, or are refused.

    Within a process all callers wait for one task. Between processes the record itself is the lock: a process claims
    the renewal by compare-and-set, for a time after which another may; the others read the record until it has changed.

    A refresh token that its server refuses cannot be used again (it was used elsewhere, and rotated, or revoked): the
    credential is marked, and its user must log in again. A server that cannot be reached changes nothing.
    """

    def __init__(
        self,
        store: CredentialStore,
        envelopes: Envelopes,
        requests: TokenRequests,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._store = store
        self._envelopes = envelopes
        self._requests = requests
        self._clock = clock
        self._own_name = randomness.token_hex(8)
        self._running: dict[tuple[CredentialKey, str], asyncio.Task[Renewed]] = {}
        """Tasks by what is renewed: a user may have logged in again since another call was refused."""

    async def renew(self, terms: PerUserTerms, key: CredentialKey, used: str) -> Renewed:
        """Return the credential with an access token other than `used`. Continues when a waiter is cancelled. Raises
        ToolFailure."""
        task = self._running.get((key, used))
        if task is None:
            task = asyncio.create_task(self._renew(terms, key, used), name=f"credential for {key.source}")
            self._running[key, used] = task
            task.add_done_callback(lambda done: self._on_renewal_end((key, used), done))
        return await asyncio.shield(task)

    def _on_renewal_end(self, which: tuple[CredentialKey, str], task: asyncio.Task[Renewed]) -> None:
        del self._running[which]
        if not task.cancelled():
            task.exception()  # raised for those who still wait

    async def _renew(self, terms: PerUserTerms, key: CredentialKey, used: str) -> Renewed:
        while True:
            stored = await self._store.get(key)
            if stored is None or stored.is_removed or stored.kind is not terms.kind:
                raise missing(terms)
            if stored.state is not CredentialState.ACTIVE:
                raise missing(terms, stored.state)
            secret = self._envelopes.open(terms, stored)
            now_unix_ms = self._clock.unix_ms()
            # Another call has renewed it since, and a second renewal would use up the rotated refresh token.
            if secret.value != used:
                return stored, secret
            if stored.renewed_by and stored.renewed_until_unix_ms > now_unix_ms:
                # Another process renews it. The store does not announce changes of credentials, so it is polled.
                await asyncio.sleep(_POLL_S)
                continue
            claim = replace(
                stored,
                renewed_by=self._own_name,
                renewed_until_unix_ms=now_unix_ms + LEASE_MS,
                version=stored.version + 1,
            )
            # If several processes claim the renewal at once, one claim is stored; the others loop and wait.
            if await self._store.put(claim):
                return await self._refresh(terms, claim, secret)

    async def _refresh(self, terms: PerUserTerms, claim: StoredCredential, secret: Secret) -> Renewed:
        after = replace(claim, renewed_by="", renewed_until_unix_ms=0, version=claim.version + 1)
        whose = "hub's" if terms.is_source_login else "caller's"
        try:
            if not secret.refresh_token:
                raise GrantRefused("expired", "there is no refresh token")  # noqa: TRY301 - the same end
            fresh = await self._requests.refresh(terms, secret, self._clock.unix_ms())
        except GrantRefused:
            if not await self._store.put(replace(after, state=CredentialState.LOGIN_NEEDED)):
                return await self._renew(terms, claim.key, secret.value)  # its user has logged in again, or revoked it
            raise missing(terms, CredentialState.LOGIN_NEEDED) from None
        except Unreachable as away:
            # The lease is returned at once, or the next call would wait for it although nobody renews.
            await self._store.put(after)
            # Servers that rotate refresh tokens have used it up.
            then = " If that fails, log in again: the refresh token may be used up."
            advice = "Try again later." + (then if isinstance(away, Unanswered) else "")
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The {whose} token for {terms.source} cannot be renewed. {away} The call was not sent. {advice}",
                blames_upstream=False,
                source=terms.source,
            ) from None
        except Exception as defect:
            # A defect of the hub must neither hold the lease nor be told as a call that may have had its effect.
            await self._store.put(after)
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The {whose} token for {terms.source} could not be renewed: the hub failed. Nothing was sent. Try "
                "again later; operators find the error in the log.",
                blames_upstream=False,
                source=terms.source,
            ) from defect
        kept = self._envelopes.seal(replace(after, changed_at_unix_ms=self._clock.unix_ms()), fresh)
        if not await self._store.put(kept):  # it was revoked or replaced meanwhile, which has priority
            await self._requests.revoke(terms, fresh)
            return await self._renew(terms, claim.key, secret.value)
        return kept, fresh

    async def close(self) -> None:
        """Wait for running renewals: a token that was rotated but not stored is lost."""
        if self._running:
            await asyncio.wait([*self._running.values()], timeout=TIMEOUT_S)


class Exchanges:
    """Exchanges callers' own tokens: once per token and source, cached in memory until they expire.

    The cache key is the presented token, not its owner: two tokens of one user may differ in rights, or in who acts for
    the user.
    """

    def __init__(self, requests: TokenRequests, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        # By all terms: a token for the server that a source had before is not for its present one.
        self._kept: OrderedDict[tuple[PerUserTerms, str], Secret] = OrderedDict()
        self._running: dict[tuple[PerUserTerms, str], asyncio.Task[Secret]] = {}

    async def token(self, terms: PerUserTerms, principal: Principal, used: str = "") -> tuple[SubjectToken, Secret]:
        """Return the caller's token, other than `used`. Raises ToolFailure."""
        subject = principal.subject_token
        if subject is None:
            raise _no_token(terms)
        key = terms, subject.digest
        kept = self._kept.get(key)
        # `used` is the one that the source has just refused, whatever its remaining lifetime.
        if kept is not None and kept.value != used and not kept.is_due(self._clock.unix_ms()):
            return subject, kept
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._exchange(terms, subject))
            task.add_done_callback(lambda done: self._on_exchange_end(key, done))
        # Shielded: several callers wait for one request, and the cancellation of one must not end it for the others.
        return subject, await asyncio.shield(task)

    def _on_exchange_end(self, key: tuple[PerUserTerms, str], task: asyncio.Task[Secret]) -> None:
        del self._running[key]
        # Failures are not cached: the next call requests again. Reading the exception here also marks it as retrieved.
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = task.result()
        self._kept.move_to_end(key)
        if len(self._kept) > _EXCHANGED_MAX:
            self._kept.popitem(last=False)

    async def _exchange(self, terms: PerUserTerms, subject: SubjectToken) -> Secret:
        now_unix_ms = self._clock.unix_ms()
        try:
            fresh = await self._requests.exchange(terms, subject, now_unix_ms)
        except GrantRefused as refused:
            raise refuse(
                ErrorKind.PERMISSION_DENIED,
                f"The caller's token was not exchanged for one for {terms.source}: {refused}. Nothing was sent.",
                blames_upstream=False,
                source=terms.source,
                state="EXCHANGE_REFUSED",
            ) from None
        except Unreachable as away:
            message = f"The caller's token for {terms.source} cannot be exchanged. {away} The call was not sent. "
            message += "Try again later."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, blames_upstream=False, source=terms.source) from None
        if fresh.renew_at_unix_ms:
            return fresh
        # `expires_in` is only recommended (RFC 8693 §2.2.1): without it the token is used for a minute.
        return Secret(fresh.value, renew_at_unix_ms=now_unix_ms + _UNKNOWN_LIFE_MS, scope=fresh.scope)


def _no_token(terms: PerUserTerms) -> ToolFailure:
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        f"The source {terms.source} wants a token of the caller's that is exchanged, and this call has none: "
        "call with an access token of an issuer, and not as a job, which keeps no token. Nothing was sent.",
        blames_upstream=False,
        source=terms.source,
        state="NO_TOKEN",
    )
