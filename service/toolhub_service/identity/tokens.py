"""Verifies tokens of several issuers, and caches verified ones by digest until they expire or their issuer has other
keys."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.domain.call import Principal
from toolhub_service.domain.ports import Clock
from toolhub_service.identity.keys import Fetch, Fetcher, IssuerKeys, KeySet, verifies
from toolhub_service.identity.token import (
    TOKEN_MAX_CHARS,
    Identity,
    IssuerTerms,
    TokenRefused,
    Unverified,
    audiences_of,
    check_audience,
    check_header,
    check_times,
    identity_of,
    parse,
)

_VERIFIED_MAX: Final = 10_000
_ROUNDS_MAX: Final = 3
"""Fetches that one token may wait for: the first keys, and those with the key that it names."""


class KeysNeeded(Exception):
    """Raised before a token can be verified: `wait` for the issuer's keys, then try again."""

    def __init__(self, keys: IssuerKeys) -> None:
        super().__init__(keys.terms.name)
        self._keys = keys

    async def wait(self) -> None:
        await self._keys.refresh()

    def begin(self) -> None:
        """Begin to fetch the keys, without waiting."""
        self._keys.begin()

    def unmet(self) -> TokenRefused:
        """Return the refusal when waiting has not helped."""
        return _unreachable(self._keys)


class Verified:
    """A valid token, with the keys that verified it."""

    __slots__ = ("_issuer", "_keys", "_leeway_s", "described", "identity", "principal")

    def __init__(self, identity: Identity, issuer: IssuerKeys, keys: KeySet) -> None:
        self.identity = identity
        self._issuer = issuer
        self._keys = keys
        self._leeway_s = issuer.terms.leeway_s
        self.described: Principal | None = None
        """The policy's description when `principal` was made."""
        self.principal: Principal | None = None

    @property
    def terms(self) -> IssuerTerms:
        return self._issuer.terms

    def holds(self, now_s: float) -> bool:
        return now_s < self.identity.expires_s + self._leeway_s and self._issuer.in_force() is self._keys


class Tokens:
    """Shared by all interfaces."""

    def __init__(
        self, issuers: Sequence[IssuerTerms], clock: Clock, fetchers: Mapping[str, Fetch] | None = None
    ) -> None:
        """`fetchers` are by the name of the issuer; None: through the egress guard. Raises FetchFailed for an invalid
        URL."""
        self._clock = clock
        made = {terms.name: Fetcher(terms) for terms in issuers} if fetchers is None else fetchers
        self.issuers = {terms.issuer: IssuerKeys(terms, made[terms.name], clock) for terms in issuers}
        self._verified: dict[bytes, Verified] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the issuers, which are the prefixes of their principals, before the colon."""
        return frozenset(keys.terms.name for keys in self.issuers.values())

    async def verify_in_time(self, token: str, audiences: frozenset[str] | None = None) -> Verified:
        """As `verify`, after waiting for keys. Raises TokenRefused."""
        for _ in range(_ROUNDS_MAX):
            try:
                return self.verify(token, audiences)
            except KeysNeeded as needed:
                await needed.wait()
        raise _unreachable(self._issuer_of(parse(token)))

    def verify(self, token: str, audiences: frozenset[str] | None = None) -> Verified:
        """Return the token's identity; `audiences` are those it must have been issued for, None for those of its
        issuer.

        Raises TokenRefused, and KeysNeeded where keys must be fetched first.
        """
        # Cut, so that hashing is bounded, and one character longer than any that `parse` accepts.
        digest = hashlib.sha256(token[: TOKEN_MAX_CHARS + 1].encode("utf-8", "surrogatepass")).digest()
        known = self._verified.get(digest)
        if known is None or not known.holds(self._clock.unix_ms() / 1_000):
            known = self._verify_token(token)
            # Only valid tokens are stored, so that nobody without one can displace the others.
            while len(self._verified) >= _VERIFIED_MAX:
                del self._verified[next(iter(self._verified))]
            self._verified[digest] = known
        # After the cache: one token may be presented at two interfaces that require different audiences.
        check_audience(known.identity.audiences, audiences if audiences is not None else known.terms.audiences)
        return known

    def _issuer_of(self, parsed: Unverified) -> IssuerKeys:
        issuer = parsed.claims.get("iss")
        keys = self.issuers.get(issuer) if isinstance(issuer, str) else None
        if keys is None:
            raise TokenRefused("issuer", "The issuer of the token (`iss`) is none that this hub accepts.")
        return keys

    def _verify_token(self, token: str) -> Verified:
        parsed = parse(token)
        issuer = self._issuer_of(parsed)
        try:
            algorithm, key_id = check_header(parsed.header, issuer.terms)
            expires_s = check_times(parsed.claims, issuer.terms, self._clock.unix_ms() / 1_000)
            # A malformed `aud` is refused before the costly signature check; the audience is compared later.
            audiences_of(parsed.claims)
            keys = self._verify_signature(parsed, issuer, algorithm, key_id)
            # Only now, so that guessing reveals nothing about what the hub requires.
            return Verified(identity_of(parsed.claims, issuer.terms, expires_s), issuer, keys)
        except TokenRefused as refused:
            refused.issuer = issuer.terms.name
            raise

    def _verify_signature(self, parsed: Unverified, issuer: IssuerKeys, algorithm: str, key_id: str) -> KeySet:
        if issuer.is_wanting():
            raise KeysNeeded(issuer)
        keys = issuer.in_force()
        if keys is None:
            raise _unreachable(issuer)
        key = keys.find(key_id, algorithm)
        if key is None:
            if issuer.may_fetch_for(key_id):
                raise KeysNeeded(issuer)
            raise TokenRefused("key", "The token is signed by a key that its issuer does not publish (`kid`).")
        if not verifies(key, algorithm, parsed.signed, parsed.signature):
            raise TokenRefused("signature", "The signature of the token is wrong.")
        return keys

    async def close(self) -> None:
        await asyncio.gather(*(keys.close() for keys in self.issuers.values()))


def _unreachable(issuer: IssuerKeys) -> TokenRefused:
    return TokenRefused(
        "unreachable",
        "The keys of the token's issuer cannot be fetched now. Try again; an operator asks `toolhub doctor` why.",
        retry_after_s=issuer.retry_after_s(),
    )
