"""A key that signs for a client: `private_key_jwt` (RFC 7523 §2.2, OpenID Connect Core §9).

Each token request carries a signed assertion of the client's identity, valid at one authorization server for a few
minutes. The audience is the issuer (draft-ietf-oauth-rfc7523bis), so that an assertion sent to one server is useless at
another.
"""

from __future__ import annotations

import time
from typing import Final
from uuid import uuid4

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LIFE_S: Final = 180  # of an assertion; authorization servers accept five minutes at most
AUTO: Final = "auto"
_RSA_MIN_BITS = 2048
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}

_Key = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


class ClientKey:
    """Signs the assertions of one client. Its repr never shows the key."""

    def __init__(self, client_id: str, pem: str, algorithm: str = AUTO) -> None:
        """`algorithm`: of JWS, or `auto` for the usual one of such a key.

        Raises ValueError, which says why the key cannot be used but quotes nothing of it.
        """
        self._client_id = client_id
        self._key = _load_key(pem)
        fitting = _fitting(self._key)
        if algorithm not in (AUTO, *fitting):
            raise ValueError(f"the key of `oauth` cannot sign with {algorithm}: it is one for {' or '.join(fitting)}")
        self._algorithm = fitting[0] if algorithm == AUTO else algorithm

    def assertion(self, audience: str) -> str:
        """Return a new assertion for `audience` only."""
        now_s = int(time.time())
        own = {"iss": self._client_id, "sub": self._client_id, "aud": audience}
        return jwt.encode(
            {**own, "jti": uuid4().hex, "iat": now_s, "exp": now_s + LIFE_S}, self._key, algorithm=self._algorithm
        )


def _load_key(pem: str) -> _Key:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # No `from`: a parser's error may quote the key.
        raise ValueError("the key of `oauth` is not a PEM private key, or is encrypted with a password") from None
    if not isinstance(key, _Key):
        reason = "the key of `oauth` has a type that cannot sign assertions; use RSA, EC or Ed25519"
        raise ValueError(reason)  # noqa: TRY004  the operator's value, not a caller's type
    return key


def _fitting(key: _Key) -> tuple[str, ...]:
    """Return the algorithms that the key can sign with, the usual one first."""
    if isinstance(key, Ed25519PrivateKey):
        return ("EdDSA",)
    if isinstance(key, RSAPrivateKey):
        if key.key_size < _RSA_MIN_BITS:
            raise ValueError(f"the key of `oauth` has {key.key_size} bits; RSA needs at least {_RSA_MIN_BITS}")
        return _RSA
    if key.curve.name not in _CURVES:
        raise ValueError("the key of `oauth` has an unsupported curve; use P-256, P-384 or P-521")
    return _CURVES[key.curve.name]
