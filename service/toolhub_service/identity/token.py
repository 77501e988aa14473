"""A JSON Web Token as an access token (RFC 7519, RFC 9068): its claims, and whether they are valid.

Nothing in a token chooses how it is verified: its `alg` must be one of the issuer's, and `jwk`, `jku`, `x5u` and `x5c`
are ignored (RFC 8725). Messages name what is wrong and never contain a part of the token.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.schema import strict_json

TOKEN_MAX_CHARS: Final = 16 * 1024
EVERYONE: Final = "*"
"""In an issuer's maps: every holder of one of its tokens."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAME: Final = re.compile(r"[\x21-\x7e]{1,255}")
# In a policy a star matches every name: an entry for a principal of such a name would match all.
_ID: Final = re.compile(r"[\x21-\x29\x2b-\x7e]{1,255}")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMES_MAX: Final = 1_000
_ACTORS_MAX: Final = 8
# Claims of ID tokens (OpenID Connect Core §2 and §3.1.3.6), and how Cognito and Keycloak mark tokens that are not
# access tokens.
_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash", "c_hash", "s_hash")
_OTHER_KINDS: Final = frozenset({"id", "refresh", "offline", "logout"})


class TokenRefused(Exception):
    """The token is refused."""

    def __init__(
        self, problem: str, message: str, *, scopes: frozenset[str] = frozenset(), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.problem = problem
        """A code for programs: `expired`, `audience`, `signature`, ..."""
        self.message = message
        self.scopes = scopes
        """The missing scopes of a token that is valid but lacks rights."""
        self.retry_after_s = retry_after_s
        """Set when the token may be valid, but the issuer's keys are unavailable now."""
        self.issuer = ""
        """Name of the issuer that it claims; empty: an unknown one."""


class IssuerTerms(msgspec.Struct, frozen=True):
    """What is accepted of one issuer. The keys of `roles` and `capabilities` are `scope:NAME`, `group:NAME` or `*`."""

    name: str
    """Prefix of its principals: `corp` makes `corp:alice`."""
    issuer: str
    """The claim `iss`, to the letter."""
    audiences: frozenset[str]
    algorithms: frozenset[str]
    """Asymmetric ones only."""
    types: frozenset[str] = frozenset({"at+jwt"})
    """Accepted values of the header `typ`, lower case, without `application/`; `jwt` also stands for none."""
    jwks_url: str = ""
    """Empty: by discovery."""
    ca_file: str = ""
    principal_claim: str = "sub"
    tenant_claim: str = ""
    groups_claim: str = "groups"
    required_scopes: frozenset[str] = frozenset()
    required_claims: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """By claim: the values of which it must have one."""
    roles: Mapping[str, frozenset[Role]] = msgspec.field(default_factory=dict)
    """Empty: no bound but the policy."""
    capabilities: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """Globs; empty: no bound but the policy."""
    leeway_s: float = 30.0
    max_lifetime_s: float = 86_400.0
    """From `iat` to `exp`; 0: any."""
    refresh_s: float = 300.0
    """Age of keys after which they are fetched again."""
    grace_s: float = 3_600.0
    """Age up to which keys are used while the issuer cannot be reached."""


class Identity(NamedTuple):
    """The subject of a verified token."""

    principal_id: str
    issuer: str
    """Name of the issuer's terms."""
    subject: str
    client_id: str
    actors: tuple[str, ...]
    """Ids of those who act for the subject, by the claim `act` (RFC 8693 §4.1): the current actor first."""
    scopes: frozenset[str]
    groups: frozenset[str]
    tenant: str
    """Empty: the issuer names none."""
    audiences: frozenset[str]
    roles: frozenset[Role] | None
    """The only roles, of those that the policy gives; None: all."""
    permissions: frozenset[str] | None
    """Globs over the only capabilities, of those that the policy gives; None: all."""
    expires_s: float
    """Unix time."""


class Unverified(NamedTuple):
    """The parts of a token, none of them verified."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


def parse(token: str) -> Unverified:
    """Return the parts. Raises TokenRefused unless it is a signed token in the compact form (RFC 7515 §7.1)."""
    if len(token) > TOKEN_MAX_CHARS:
        raise TokenRefused("too_large", f"The token has more than {TOKEN_MAX_CHARS:,} characters.")
    parts = token.split(".")
    if len(parts) == 5:
        raise TokenRefused("encrypted", "The token is encrypted (JWE). Send a signed one (JWS).")
    if len(parts) != 3:
        raise TokenRefused("malformed", "The token is no JSON Web Token: it must have three parts.")
    header, claims = _json("header", parts[0]), _json("payload", parts[1])
    if not parts[2]:
        raise TokenRefused("unsigned", "The token has no signature.")
    return Unverified(header, claims, f"{parts[0]}.{parts[1]}".encode(), _decode_segment("signature", parts[2]))


def _decode_segment(name: str, segment: str) -> bytes:
    """Return base64url without padding, decoded; only the canonical form of each text is accepted (RFC 7515 §2)."""
    if _SEGMENT.fullmatch(segment) is not None:
        try:
            data = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        except binascii.Error:
            data = b""
        # Encoded again and compared: unused bits of the last character would give one token several forms, and digests.
        if data and binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_URL_SAFE) == segment.encode():
            return data
    raise TokenRefused("malformed", f"The {name} of the token is not base64url without padding.")


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def _json(name: str, segment: str) -> Mapping[str, Any]:
    data = _decode_segment(name, segment)
    try:
        value = strict_json.loads(data)
    except ToolFailure:
        value = None
    if not isinstance(value, Mapping):
        raise TokenRefused("malformed", f"The {name} of the token is no JSON object, or names a member twice.")
    return value


def check_header(header: Mapping[str, Any], terms: IssuerTerms) -> tuple[str, str]:
    """Return (algorithm, id of the key, which may be empty). Raises TokenRefused."""
    algorithm, key_id, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "jwt")
    if not isinstance(algorithm, str) or algorithm not in terms.algorithms:
        raise TokenRefused(
            "algorithm", f"The token is not signed by an algorithm that {terms.name} is accepted with (`algorithms`)."
        )
    # RFC 7515 §4.1.11: an unknown extension that is marked critical makes the token invalid.
    if "crit" in header or "b64" in header:
        raise TokenRefused("critical", "The token demands an extension that the hub does not know (`crit`).")
    known_kind = kind.lower().removeprefix("application/") if isinstance(kind, str) else ""
    if known_kind not in terms.types:
        raise TokenRefused(
            "type",
            f"The token is of another kind (`typ`) than {terms.name} is accepted with: "
            f"{', '.join(sorted(terms.types))}. An operator lists under `types` what the issuer's access tokens say.",
        )
    if not isinstance(key_id, str) or len(key_id) > 256:
        raise TokenRefused("key", "The token names no key that could be one (`kid`).")
    return algorithm, key_id


def check_times(claims: Mapping[str, Any], terms: IssuerTerms, now_s: float) -> float:
    """Return the expiry in Unix time. Raises TokenRefused."""
    expires_s, not_before_s, issued_s = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires_s is None:
        raise TokenRefused("expiry", "The token never expires: it must have `exp`.")
    if now_s >= expires_s + terms.leeway_s:
        raise TokenRefused("expired", "The token has expired. Get a new one.")
    if not_before_s is not None and now_s < not_before_s - terms.leeway_s:
        raise TokenRefused("not_yet", "The token does not hold yet (`nbf`), or the clock of issuer or hub is wrong.")
    if issued_s is not None and now_s < issued_s - terms.leeway_s:
        raise TokenRefused("not_yet", "The token is of the future (`iat`), or the clock of issuer or hub is wrong.")
    # Without `iat` its remaining lifetime counts, which is the least for which it can have been issued.
    start_s = issued_s if issued_s is not None else now_s
    if terms.max_lifetime_s and expires_s - start_s > terms.max_lifetime_s:
        raise TokenRefused("lifetime", "The token holds for longer than the hub accepts (`max_lifetime_s`).")
    return expires_s


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    # Python's True is an int. The bound excludes NaN and infinity, which do not compare like a time.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused("malformed", f"`{name}` of the token is no time.")
    return float(value)


def audiences_of(claims: Mapping[str, Any]) -> frozenset[str]:
    sent = claims.get("aud")
    values = [sent] if isinstance(sent, str) else sent
    if not isinstance(values, list) or len(values) > _NAMES_MAX or not all(isinstance(each, str) for each in values):
        raise TokenRefused("audience", "The token names no audience (`aud`).")
    return frozenset(values)


def check_audience(found: frozenset[str], wanted: frozenset[str]) -> None:
    """Raises TokenRefused for a token issued for another audience."""
    if found.isdisjoint(wanted):
        raise TokenRefused("audience", "The token was not made for this hub (`aud`).")


def identity_of(claims: Mapping[str, Any], terms: IssuerTerms, expires_s: float) -> Identity:
    """Return the identity in the claims of a verified token. Raises TokenRefused."""
    _check_kind(claims)
    for claim, values in terms.required_claims.items():
        if values.isdisjoint(_names(_claim(claims, claim))):
            raise TokenRefused("claim", f"The claim `{claim}` of the token has no value that the hub accepts.")
    subject = _subject(claims, terms)
    scopes = frozenset(_names(claims.get("scope", claims.get("scp"))))
    if missing := terms.required_scopes - scopes:
        raise TokenRefused("scope", f"The token lacks the scope {', '.join(sorted(missing))}.", scopes=missing)
    groups = frozenset(_names(_claim(claims, terms.groups_claim)))
    held = {EVERYONE, *(f"scope:{name}" for name in scopes), *(f"group:{name}" for name in groups)}
    client, tenant = claims.get("client_id", claims.get("azp")), _tenant(claims, terms)
    return Identity(
        principal_id=_id(terms, tenant, subject),
        issuer=terms.name,
        subject=subject,
        client_id=client if isinstance(client, str) and _NAME.fullmatch(client) else "",
        actors=_actors(claims, terms),
        scopes=scopes,
        groups=groups,
        tenant=tenant,
        audiences=audiences_of(claims),
        roles=_narrow_by(terms.roles, held),
        permissions=_narrow_by(terms.capabilities, held),
        expires_s=expires_s,
    )


def principal_of(identity: Identity) -> Principal:
    """Return the token's principal, with the most roles that it may have: the policy has not been applied yet."""
    return Principal(
        identity.principal_id,
        frozenset(Role) if identity.roles is None else identity.roles,
        issuer=identity.issuer,
        actors=identity.actors,
        permissions=identity.permissions,
        tenant=identity.tenant,
        groups=identity.groups,
    )


def _narrow_by(by_name: Mapping[str, frozenset[Any]], held: set[str]) -> frozenset[Any] | None:
    if not by_name:
        return None
    # No match gives the empty set, not None: a map that names none of the token's scopes or groups narrows to nothing.
    return frozenset().union(*(given for name, given in by_name.items() if name in held))


def _check_kind(claims: Mapping[str, Any]) -> None:
    marks = [claims.get(name) for name in ("token_use", "typ")]
    if any(name in claims for name in _ID_TOKEN_CLAIMS) or "id" in _lower(marks):
        raise TokenRefused("id_token", "This is an ID token, which is for the client. Send the access token.")
    if "events" in claims or _OTHER_KINDS.intersection(_lower(marks)):
        raise TokenRefused("kind", "This is no access token. Send the access token.")
    if "cnf" in claims:
        # Accepted as a bearer token, a stolen one would be as valid as its owner's (RFC 7800, RFC 9449).
        raise TokenRefused("bound", "The token is bound to a key of its owner (`cnf`), which the hub cannot check.")


def _lower(values: list[Any]) -> set[str]:
    return {value.lower() for value in values if isinstance(value, str)}


def _subject(claims: Mapping[str, Any], terms: IssuerTerms) -> str:
    subject = _claim(claims, terms.principal_claim)
    if not isinstance(subject, str) or _ID.fullmatch(subject) is None:
        message = (
            f"The claim `{terms.principal_claim}` of the token is not 1 to 255 printable ASCII characters, none `*`."
        )
        raise TokenRefused("subject", message)
    # Some issuers let users enter any address in their profile: unverified, it could be anybody's name.
    if terms.principal_claim == "email" and claims.get("email_verified") is not True:
        raise TokenRefused("subject", "The issuer has not verified the address of the token (`email_verified`).")
    return subject


def _tenant(claims: Mapping[str, Any], terms: IssuerTerms) -> str:
    if not terms.tenant_claim:
        return ""
    tenant = _claim(claims, terms.tenant_claim)
    if not isinstance(tenant, str) or _TENANT.fullmatch(tenant) is None:
        raise TokenRefused("tenant", f"The claim `{terms.tenant_claim}` of the token is no name of a tenant.")
    return tenant


def _id(terms: IssuerTerms, tenant: str, subject: str) -> str:
    return f"{terms.name}:{tenant}/{subject}" if tenant else f"{terms.name}:{subject}"


def _actors(claims: Mapping[str, Any], terms: IssuerTerms) -> tuple[str, ...]:
    """Return each actor's id as in a token of its own; of the token's tenant where it names none."""
    actors: list[str] = []
    actor = claims.get("act")
    while actor is not None:
        if not isinstance(actor, Mapping) or len(actors) == _ACTORS_MAX:
            raise TokenRefused("actor", "The claim `act` of the token is no chain of actors (RFC 8693 §4.1).")
        own = _claim(actor, terms.principal_claim)
        name = actor.get("sub") if own is None else own
        if not isinstance(name, str) or _ID.fullmatch(name) is None:
            raise TokenRefused("actor", "The claim `act` of the token is no chain of actors (RFC 8693 §4.1).")
        # The id would get this issuer's prefix, and so be that of another person with the same `sub`.
        if actor.get("iss", terms.issuer) != terms.issuer:
            raise TokenRefused("actor", "Who acts for the token's subject (`act`) has another issuer than the token.")
        has_tenant = _claim(actor, terms.tenant_claim) is not None
        actors.append(_id(terms, _tenant(actor if has_tenant else claims, terms), name))
        actor = actor.get("act")
    return tuple(actors)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by a path through objects such as `realm_access.roles`."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _names(value: Any) -> Iterator[str]:
    """Return the names of a list, or of words separated by spaces (RFC 6749 §3.3); values that are not text are
    ignored."""
    words = value.split(" ") if isinstance(value, str) else value if isinstance(value, list) else []
    return (word for word in words[:_NAMES_MAX] if isinstance(word, str) and word)
