"""The public keys of one issuer (RFC 7517): found by discovery, fetched through the egress guard, and cached.

Keys are fetched when a token needs them, again when they are old, and once more when a token names an unknown key,
which a token bucket limits, so that made-up key ids cause no more requests than that. While the issuer cannot be
reached, the last good keys are used for `grace_s`. There is one fetch at a time; it continues when its waiter leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import EgressClient, HttpRequest
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.schema import strict_json

NOT_INSTALLED: Final = "tokens need the extra `oidc`: toolhub extras install oidc"

_DOCUMENT_MAX_BYTES: Final = 256 * 1024
_FETCH_S: Final = 5.0
_KEYS_MAX: Final = 64
_MISSING_MAX: Final = 256
_MISSING_S: Final = 60.0
"""Seconds for which an unknown key id is not requested again."""
_EXTRA_FETCHES: Final = 5
"""Fetches for unknown key ids that may happen at once; then one each _EXTRA_FETCH_S."""
_EXTRA_FETCH_S: Final = 10.0
_PAUSE_S: Final = 2.0
"""Pause after a failure, doubled by each further one, up to _PAUSE_MAX_S."""
_PAUSE_MAX_S: Final = 60.0
_DISCOVERED_S: Final = 3_600.0
_RSA_BITS: Final = range(2_048, 8_193)
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
# The operator names the issuer, so it may be in any network. What one of its documents points to may not.
_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")


def is_installed() -> bool:
    return find_spec("jwt") is not None and find_spec("cryptography") is not None


class FetchFailed(Exception):
    """Discovery or keys cannot be read; the message says why, for the operator."""


class Document(NamedTuple):
    status: int
    body: bytes
    date: str
    """The header Date; empty without one."""


class Fetcher:
    """GETs an issuer's documents."""

    def __init__(self, terms: IssuerTerms) -> None:
        self._origin = _parse_url("issuer", terms.issuer).origin
        self._own = {self._origin, _parse_url("jwks_url", terms.jwks_url).origin} if terms.jwks_url else {self._origin}
        self._ca_file = terms.ca_file
        self._client: EgressClient | None = None
        self._resolver: SystemResolver | None = None

    async def get(self, url: str) -> Document:
        """Return a document. Raises FetchFailed."""
        parsed = _parse_url("jwks_uri", url)
        rule = EgressRule(
            hosts=(parsed.host,),
            schemes=frozenset({parsed.scheme}),
            ports=frozenset({parsed.port}),
            methods=frozenset({"GET"}),
            # `jwks_uri` comes from a document: it must not make the hub read addresses of its own network.
            cidrs=_ANY_NETWORK if parsed.origin in self._own else (),
        )
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        request = HttpRequest(url, accept="application/json, application/jwk-set+json")
        try:
            async with self._open_client().open(request, (rule,), deadline_s=deadline_s) as response:
                body = await response.body(_DOCUMENT_MAX_BYTES).whole()
                return Document(response.status, body, response.header(b"date"))
        except ToolFailure as failure:
            raise FetchFailed(f"{url}: {failure.error.message}") from failure
        except (OSError, ValueError) as unusable:
            raise FetchFailed(f"ca_file {self._ca_file}: {unusable}") from unusable

    def _open_client(self) -> EgressClient:
        if self._client is None:
            tls = None
            if self._ca_file:
                tls = ssl.create_default_context(cafile=self._ca_file)
                tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._resolver = SystemResolver()
            transport = GuardedTransport(self._resolver, tls=tls, max_connections=2)
            # No redirects: RFC 8414 and OpenID Connect Discovery have none, and one would leave the named origin.
            self._client = EgressClient(transport, redirects_max=0)
        return self._client

    async def close(self) -> None:
        if self._client is not None and self._resolver is not None:
            await self._client.aclose()
            self._resolver.close()


class Fetch(Protocol):
    async def get(self, url: str) -> Document:
        """Return a document. Raises FetchFailed."""
        ...

    async def close(self) -> None: ...


def _parse_url(name: str, url: str) -> ParsedUrl:
    try:
        return parse_url(url)
    except ToolFailure as failure:
        raise FetchFailed(f"{name}: {failure.error.message}") from failure


def check_url(name: str, url: str) -> None:
    """Raises FetchFailed unless it is an https URL, or http within this machine: whoever can change keys in transit can
    make any token."""
    parsed = _parse_url(name, url)
    if parsed.scheme != "https" and parsed.host not in ("localhost", "127.0.0.1", "::1", "[::1]"):
        raise FetchFailed(f"{name}: {url} must begin with https://")


class PublicKey(NamedTuple):
    key_id: str
    algorithms: frozenset[str]
    """Algorithms that it may verify."""
    key: Any
    """The key object of `cryptography`."""


class KeySet:
    """All usable keys of one document."""

    def __init__(self, keys: list[PublicKey], digest: bytes) -> None:
        self.keys = keys
        self.digest = digest

    def find(self, key_id: str, algorithm: str) -> PublicKey | None:
        """Return the named key, and without a name the only one that fits."""
        fitting = [key for key in self.keys if algorithm in key.algorithms and key_id in ("", key.key_id)]
        # Of several that fit none is tried: a token must not select its key by being tried with all of them.
        return fitting[0] if len(fitting) == 1 else None


def verifies(key: PublicKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    from jwt.algorithms import get_default_algorithms

    return bool(get_default_algorithms()[algorithm].verify(signed, key.key, signature))


def read_keys(body: bytes, algorithms: frozenset[str]) -> KeySet:
    """Return the keys of a JWK set that verify one of the algorithms; others are skipped. Raises FetchFailed."""
    document = _object("keys", body)
    entries = document.get("keys")
    if not isinstance(entries, list) or len(entries) > _KEYS_MAX:
        raise FetchFailed(f"the document has no list `keys` of at most {_KEYS_MAX}")
    keys = [key for entry in entries if isinstance(entry, Mapping) and (key := _read_key(entry, algorithms))]
    if not keys:
        raise FetchFailed(f"the document has no public key for {', '.join(sorted(algorithms))}")
    return KeySet(keys, hashlib.sha256(body).digest())


def _read_key(entry: Mapping[str, Any], algorithms: frozenset[str]) -> PublicKey | None:
    """Return the key; None when it is not for signatures, is secret, is weak or cannot be read."""
    operations, key_id = entry.get("key_ops"), entry.get("kid", "")
    # `d` is a private key and `k` a symmetric one (RFC 7518 §6): when published, either lets anybody sign.
    is_secret = "d" in entry or "k" in entry
    if is_secret or entry.get("use", "sig") != "sig" or (isinstance(operations, list) and "verify" not in operations):
        return None
    fitting = frozenset(name for name in algorithms if _fits(entry, name) and entry.get("alg", name) == name)
    if not fitting or not isinstance(key_id, str):
        return None
    from jwt.algorithms import get_default_algorithms
    from jwt.exceptions import InvalidKeyError

    # All that fit are of one family and read a key alike; taking the smallest name makes the choice stable.
    known = get_default_algorithms()[min(fitting)]
    # One unreadable entry must not invalidate the issuer's other keys; None treats it as not accepted.
    with suppress(InvalidKeyError, ValueError, TypeError, KeyError):
        key = known.from_jwk({name: value for name, value in entry.items() if name in _MEMBERS})
        # RFC 7518 §3.3 requires 2048 bits at least; the upper limit keeps verification from taking seconds.
        if entry["kty"] != "RSA" or key.key_size in _RSA_BITS:
            return PublicKey(key_id, fitting, key)
    return None


_MEMBERS: Final = frozenset({"kty", "n", "e", "crv", "x", "y"})


def _fits(entry: Mapping[str, Any], algorithm: str) -> bool:
    kind, curve = entry.get("kty"), entry.get("crv")
    if algorithm in _CURVES:
        return kind == "EC" and curve == _CURVES[algorithm]
    if algorithm == "EdDSA":
        return kind == "OKP" and curve == "Ed25519"
    return kind == "RSA"


def _object(name: str, body: bytes) -> Mapping[str, Any]:
    try:
        value = strict_json.loads(body, max_bytes=_DOCUMENT_MAX_BYTES, max_depth=16)
    except ToolFailure as failure:
        raise FetchFailed(f"{name}: {failure.error.message}") from failure
    if not isinstance(value, Mapping):
        raise FetchFailed(f"{name}: no JSON object")
    return value


class IssuerKeys:
    """The keys in force. Not thread-safe: everything happens on the loop."""

    def __init__(self, terms: IssuerTerms, fetch: Fetch, clock: Clock) -> None:
        self.terms = terms
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_s = 0.0
        self._retry_s = 0.0
        """When the next fetch may be tried after a failure."""
        self._failures = 0
        self.problem = ""
        """Why the last fetch failed; empty: it succeeded."""
        self._task: asyncio.Task[None] | None = None
        self._jwks_url, self._discovered_s = "", 0.0
        self._missing_until_s: dict[str, float] = {}
        self._extra_fetches, self._counted_s = float(_EXTRA_FETCHES), 0.0

    def in_force(self) -> KeySet | None:
        """The usable keys; None: there are none, or they are too old."""
        now_s = self._clock.monotonic_s()
        age_s = now_s - self._fetched_s
        if self._keys is None or age_s > max(self.terms.grace_s, self.terms.refresh_s):
            return None
        # Old, but still valid: this token is verified at once while new keys are fetched.
        if age_s > self.terms.refresh_s:
            self.begin()
        return self._keys

    def is_wanting(self) -> bool:
        """Whether a token must wait for keys now, and may."""
        now_s = self._clock.monotonic_s()
        # Twice the age: until then a background fetch has had its chance, and nobody needs to wait.
        is_old = self._keys is None or now_s - self._fetched_s > 2 * self.terms.refresh_s
        return is_old and (self._task is not None or now_s >= self._retry_s)

    def may_fetch_for(self, key_id: str) -> bool:
        """Return whether a fetch may find an unknown key, such as one that the issuer has just created; begins one."""
        now_s = self._clock.monotonic_s()
        if self._task is not None:
            # The running fetch may find the key, at no further cost to the issuer.
            return bool(key_id)
        if not key_id or self._missing_until_s.get(key_id, 0.0) > now_s or now_s < self._retry_s:
            return False
        self._extra_fetches = min(
            float(_EXTRA_FETCHES), self._extra_fetches + (now_s - self._counted_s) / _EXTRA_FETCH_S
        )
        self._counted_s = now_s
        if self._extra_fetches < 1.0:
            return False
        self._extra_fetches -= 1.0
        if len(self._missing_until_s) >= _MISSING_MAX:
            # Made-up key ids would fill this; dropping the oldest keeps it bounded, and the bucket still limits
            # fetches.
            del self._missing_until_s[next(iter(self._missing_until_s))]
        self._missing_until_s[key_id] = now_s + _MISSING_S
        self.begin()
        return True

    def retry_after_s(self) -> float:
        return max(1.0, self._retry_s - self._clock.monotonic_s())

    async def refresh(self) -> None:
        """Wait for the running fetch, or for one that begins now unless one has failed too recently."""
        self.begin()
        if self._task is not None:
            await asyncio.wait({self._task})

    def begin(self) -> None:
        """Begin a background fetch, unless one is running or has failed too recently."""
        if self._task is not None or self._clock.monotonic_s() < self._retry_s:
            return
        self._task = asyncio.create_task(self._fetch_keys(), name=f"keys of {self.terms.name}")
        self._task.add_done_callback(self._on_fetch_end)

    def _on_fetch_end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        failed = None if task.cancelled() else task.exception()
        if failed is not None:
            # The issuer may have moved its keys: discovery is repeated before the next fetch.
            self.problem, self._jwks_url = str(failed), ""
            pause_s = min(_PAUSE_S * 2.0**self._failures, _PAUSE_MAX_S)
            # Capped, because 2.0 to the power of a long outage overflows.
            self._failures = min(self._failures + 1, 16)
            self._retry_s = self._clock.monotonic_s() + pause_s

    async def _fetch_keys(self) -> None:
        """Raises FetchFailed."""
        url = self.terms.jwks_url or await self._discover()
        document = await self._fetch.get(url)
        if document.status != 200:
            raise FetchFailed(f"{url} answers {document.status}")
        keys = read_keys(document.body, self.terms.algorithms)
        self.problem, self._failures, self._retry_s = "", 0, 0.0
        self._fetched_s = self._clock.monotonic_s()
        if self._keys is None or self._keys.digest != keys.digest:
            self._keys = keys  # a new object, so that tokens verified with the former keys are verified again
            self._missing_until_s.clear()

    async def _discover(self) -> str:
        """Follow OpenID Connect Discovery §4, and RFC 8414 §3.1 where there is no such document."""
        now_s = self._clock.monotonic_s()
        if self._jwks_url and now_s - self._discovered_s < _DISCOVERED_S:
            return self._jwks_url
        issuer = self.terms.issuer
        document = await self._fetch.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        # Only if it does not exist: any other failure of discovery must not lead to a second document.
        if document.status == 404:
            parsed = _parse_url("issuer", issuer)
            path = "" if parsed.target == "/" else parsed.target.rstrip("/")
            document = await self._fetch.get(
                f"{parsed.scheme}://{parsed.authority}/.well-known/oauth-authorization-server{path}"
            )
        if document.status != 200:
            raise FetchFailed(f"discovery at {issuer} answers {document.status}")
        found = _object("discovery", document.body)
        if found.get("issuer") != issuer:
            # RFC 8414 §3.3: otherwise another issuer's document would make this issuer accept that one's keys.
            raise FetchFailed(f"the document at {issuer} is of another issuer: `issuer` must be the same to the letter")
        url = found.get("jwks_uri")
        if not isinstance(url, str):
            raise FetchFailed(f"the document at {issuer} has no `jwks_uri`")
        check_url("jwks_uri", url)
        self._jwks_url, self._discovered_s = url, now_s
        return url

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._fetch.close()
