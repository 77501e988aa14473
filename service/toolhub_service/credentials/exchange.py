"""Tokens that callers' own were exchanged for (RFC 8693): asked for once a token and source, kept in memory until they
expire.

What is kept hangs on the very token that was shown, not on whose it is: two tokens of one user may differ in rights, or
in who acts for the user.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from toolhub_service.credentials.secret import PerUserTerms, Secret
from toolhub_service.credentials.token_requests import GrantRefused, TokenRequests, Unreachable
from toolhub_service.domain.call import Principal, SubjectToken
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Clock

KEPT_MAX: Final = 10_000
_UNKNOWN_LIFE_MS: Final = 60_000


class Exchanges:
    def __init__(self, requests: TokenRequests, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        # By all terms: what was had for the server that a source had before is not for the one that it has now.
        self._kept: OrderedDict[tuple[PerUserTerms, str], Secret] = OrderedDict()
        self._running: dict[tuple[PerUserTerms, str], asyncio.Task[Secret]] = {}

    async def token(self, terms: PerUserTerms, principal: Principal, used: str = "") -> tuple[SubjectToken, Secret]:
        """For the caller, another one than `used`. Raises ToolFailure."""
        subject = principal.subject_token
        if subject is None:
            raise _no_token(terms)
        key = terms, subject.digest
        kept = self._kept.get(key)
        # `used` is the one that the source has just refused, whatever its lifetime says.
        if kept is not None and kept.value != used and not kept.is_due(self._clock.unix_ms()):
            return subject, kept
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._exchange(terms, subject))
            task.add_done_callback(lambda done: self._ended(key, done))
        # Shielded: several callers wait for one request, and one that leaves must not end it for the others.
        return subject, await asyncio.shield(task)

    def _ended(self, key: tuple[PerUserTerms, str], task: asyncio.Task[Secret]) -> None:
        del self._running[key]
        # A failure is not kept: the next call asks again. To read the exception here also marks it as seen.
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = task.result()
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_MAX:
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
            message = f"The caller's token for {terms.source} cannot be exchanged. {away} Nothing was sent. Try later."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, blames_upstream=False, source=terms.source) from None
        if fresh.renew_at_unix_ms:
            return fresh
        # `expires_in` is only recommended (RFC 8693 §2.2.1): without it the token is trusted for a minute.
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
