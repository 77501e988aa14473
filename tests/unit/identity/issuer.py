"""An issuer in the process of the test: keys, the documents that name them, and tokens of any kind, good or bad."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from tests.fakes.clock import ManualClock
from toolhub_service.identity.keys import Document, FetchFailed
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.identity.tokens import Tokens

ISSUER: Final = "https://id.example.com/realm"
AUDIENCE: Final = "https://hub.example.com"
_ALGORITHMS: Final = get_default_algorithms()
_RSA: Final = rsa.generate_private_key(65_537, 2_048)
OTHER_RSA: Final = rsa.generate_private_key(65_537, 2_048)
WEAK_RSA: Final = rsa.generate_private_key(65_537, 1_024)
PRIVATE: Final[Mapping[str, Any]] = {
    "RS256": _RSA,
    "PS256": _RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key: Any, algorithm: str, key_id: str, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(_ALGORITHMS[algorithm].to_jwk(key.public_key()))
    known.pop("key_ops", None)
    return {**known, "kid": key_id, "use": "sig", **more}


def signed(header: Mapping[str, Any] | str, claims: Mapping[str, Any] | str, key: Any, algorithm: str) -> str:
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims)]
    first = ".".join(b64(part.encode()) for part in parts)
    return f"{first}.{b64(_ALGORITHMS[algorithm].sign(first.encode(), key))}"


class Issuer:
    """Implements the port `Fetch`. Its clock is the hub's."""

    def __init__(self, **terms: Any) -> None:
        self.clock = ManualClock()
        self.is_up = True
        self.asked: list[str] = []
        self.keys = [public_jwk(PRIVATE[name], name, name) for name in ("RS256", "ES256", "ES384", "EdDSA")]
        self.discovery: dict[str, Any] = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        chosen: dict[str, Any] = {
            "name": "corp",
            "issuer": ISSUER,
            "audiences": frozenset({AUDIENCE}),
            "algorithms": frozenset({"RS256", "ES256", "EdDSA", "PS256"}),
        }
        self.terms = IssuerTerms(**{**chosen, **terms})
        self.tokens = Tokens([self.terms], self.clock, {"corp": self})

    async def get(self, url: str) -> Document:
        self.asked.append(url)
        if not self.is_up:
            raise FetchFailed("it cannot be reached")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return Document(200, json.dumps(self.discovery).encode(), "")
        return Document(200 if url == f"{ISSUER}/keys" else 404, json.dumps({"keys": self.keys}).encode(), "")

    async def close(self) -> None:
        """There is nothing."""

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Those of a good token; None removes one."""
        now_s = self.clock.unix_ms() // 1_000
        good = {"iss": ISSUER, "sub": "alice", "aud": AUDIENCE, "iat": now_s, "exp": now_s + 600, "client_id": "app"}
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, algorithm: str = "RS256", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        key_id = "RS256" if algorithm == "PS256" else algorithm
        sent = {"alg": algorithm, "kid": key_id, "typ": "at+jwt", **(header or {})}
        kept = {name: value for name, value in sent.items() if value is not None}
        return signed(kept, self.claims(**claims), PRIVATE[algorithm], algorithm)
