"""Checks one token as the hub would, and reports the result of each check: never the token itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from toolhub_service.app.offline import policy_file_of, policy_of
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.app.wiring.identity import issuer_terms
from toolhub_service.domain.call import Role
from toolhub_service.identity.keys import FetchFailed
from toolhub_service.identity.token import (
    Identity,
    IssuerTerms,
    TokenRefused,
    Unverified,
    audiences_of,
    check_header,
    check_times,
    identity_of,
    parse,
    principal_of,
)
from toolhub_service.identity.tokens import Tokens
from toolhub_service.settings.document import Settings

_NAMES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class TokenCheck:
    check: str
    is_passed: bool
    text: str


async def check_token(settings: Settings, token: str) -> list[TokenCheck]:
    """Return the results in the order of the checks; where one fails that all later ones depend on, it is the last."""
    try:
        parsed = parse(token)
    except TokenRefused as refused:
        return [TokenCheck("form", False, refused.message)]
    found = [TokenCheck("form", True, "a signed JSON Web Token")]
    terms = next((each for each in issuer_terms(settings) if each.issuer == parsed.claims.get("iss")), None)
    if terms is None:
        known = _join_names([issuer.issuer for issuer in settings.auth.jwt.issuers]) or "none"
        return [*found, TokenCheck("issuer", False, f"{_short_text(parsed.claims.get('iss'))} is none of: {known}")]
    found.append(TokenCheck("issuer", True, f"{terms.name}, {terms.issuer}"))
    # All checks run, although the hub stops at the first failure: the operator of an issuer wants all of them at once.
    found += _claims(parsed, terms, settings)
    found.append(await _signature(token, terms))
    return [*found, *_identity(parsed, terms, settings)]


def _claims(parsed: Unverified, terms: IssuerTerms, settings: Settings) -> Iterator[TokenCheck]:
    try:
        algorithm, key_id = check_header(parsed.header, terms)
        yield TokenCheck("header", True, f"{algorithm}, key {_short_text(key_id) if key_id else 'not named'}")
    except TokenRefused as refused:
        sent = ", ".join(f"{name}: {_short_text(parsed.header.get(name))}" for name in ("alg", "typ", "kid"))
        yield TokenCheck(
            "header", False, f"{refused.message} It says {sent}; accepted: {_join_names(terms.algorithms)}"
        )
    now_s = SystemClock().unix_ms() / 1_000
    try:
        expires_s = check_times(parsed.claims, terms, now_s)
        yield TokenCheck("times", True, f"until {_time(expires_s)}, {max(0, round(expires_s - now_s)):,} s from now")
    except TokenRefused as refused:
        times = ", ".join(f"{name} {_time(parsed.claims.get(name))}" for name in ("iat", "nbf", "exp"))
        yield TokenCheck("times", False, f"{refused.message} It says {times}; it is {_time(now_s)}")
    # A token for MCP is issued for that resource (RFC 8707), one for gRPC for `audiences`.
    entrances = {"gRPC": terms.audiences, "MCP": frozenset({settings.server.mcp.public_url or ""} - {""})}
    try:
        audiences = audiences_of(parsed.claims)
    except TokenRefused as refused:
        yield TokenCheck("audience", False, refused.message)
        return
    for entrance, chosen in entrances.items():
        wanted = chosen or terms.audiences
        is_good = not audiences.isdisjoint(wanted)
        text = "made for it" if is_good else f"made for {_join_names(audiences)}; it must be for {_join_names(wanted)}"
        yield TokenCheck(f"audience, {entrance}", is_good, text)


async def _signature(token: str, terms: IssuerTerms) -> TokenCheck:
    """Check the signature with the issuer's current keys; other checks report other problems."""
    # Keys are fetched anew: what a running hub has cached is irrelevant here.
    tokens = Tokens([terms], SystemClock())
    try:
        await tokens.verify_in_time(token, None)
    except TokenRefused as refused:
        if refused.problem in ("signature", "key"):
            return TokenCheck("signature", False, refused.message)
        if refused.problem == "unreachable":
            return TokenCheck("signature", False, f"the keys cannot be had: {tokens.issuers[terms.issuer].problem}")
        if refused.problem in (
            "expired",
            "expiry",
            "not_yet",
            "lifetime",
            "malformed",
            "algorithm",
            "critical",
            "type",
        ):
            return TokenCheck("signature", False, "not looked at, for the hub does not come so far")
    except FetchFailed as failed:
        return TokenCheck("signature", False, str(failed))
    finally:
        await tokens.close()
    return TokenCheck("signature", True, f"by a key of {terms.issuer}")


def _identity(parsed: Unverified, terms: IssuerTerms, settings: Settings) -> Iterator[TokenCheck]:
    try:
        identity = identity_of(parsed.claims, terms, 0.0)
    except TokenRefused as refused:
        yield TokenCheck("claims", False, refused.message)
        return
    acting = f", for whom {' for '.join(identity.actors)} acts" if identity.actors else ""
    yield TokenCheck("principal", True, f"{identity.principal_id}{acting}")
    yield _roles(identity, settings)
    if identity.permissions is not None:
        yield TokenCheck(
            "capabilities", True, f"at most {_join_names(identity.permissions) or 'none'}, of what the policy grants"
        )


def _roles(identity: Identity, settings: Settings) -> TokenCheck:
    policy, verified = policy_of(policy_file_of(settings)), principal_of(identity)
    # Once as if the token had every role: the difference shows whether policy or token lacks it.
    given = policy.apply_to_principal(replace(verified, roles=frozenset(Role))).roles
    if not given and identity.actors:
        return TokenCheck("roles", False, "the policy gives principal and actors no role that all of them have")
    if not given:
        return TokenCheck("roles", False, "the policy names the principal neither under `grants` nor under `roles`")
    kept = policy.apply_to_principal(verified).roles
    if not kept:
        names = _join_names(role.value for role in given)
        return TokenCheck("roles", False, f"the policy gives {names}, and scopes and groups of the token none of them")
    return TokenCheck("roles", True, _join_names(role.value for role in kept))


def _join_names(names: object) -> str:
    found = sorted(map(_short_text, names))  # type: ignore[call-overload]
    return ", ".join(found[:_NAMES_SHOWN]) + (", …" if len(found) > _NAMES_SHOWN else "")


def _short_text(value: object) -> str:
    """Return a short value of the token; the command line escapes it."""
    text = value if isinstance(value, str) else "nothing" if value is None else repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _time(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        return _short_text(value)
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
