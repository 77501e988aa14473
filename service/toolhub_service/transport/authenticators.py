"""The kinds of credential: none at all on loopback, and API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from toolhub_service.domain.principal import Principal
from toolhub_service.transport.rpc import ServicerContext
from toolhub_service.transport.status import RpcFailure

LOCAL = "local"
"""The principal of `insecure-local`."""

KEY_PREFIX = "thk_"

DescribePrincipal = Callable[[str], Principal]
"""Roles and rights of a principal under the policy in force."""


@dataclass(frozen=True, slots=True)
class InsecureLocal:
    """Whoever reaches the loopback address is `local`. The server refuses to start it on any other address."""

    describe: DescribePrincipal
    advice: str = ""

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        if presented_in(metadata):
            return None  # a credential that was sent is judged, never ignored
        return self.describe(LOCAL)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as it is kept: named, and hashed (the secret has 256 random bits, so one round of sha256 serves)."""

    name: str
    """The principal."""
    sha256: str
    """Hex digest of the whole key text."""


class ApiKeys:
    """`authorization: Bearer thk_<id>_<secret>` or `x-api-key: thk_<id>_<secret>`."""

    advice = (
        "Send an API key as `Bearer thk_…` in the metadata entry `authorization`; "
        "an operator makes one by `toolhub keys create NAME`."
    )
    """Worded so that redaction, which every text that leaves passes, takes no part of it for a header."""

    def __init__(self, keys: Mapping[str, StoredKey], describe: DescribePrincipal) -> None:
        self._keys = dict(keys)
        self._describe = describe

    def replace(self, keys: Mapping[str, StoredKey]) -> None:
        """Use another set from now on: a revoked key stops working at once."""
        self._keys = dict(keys)

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        presented = presented_in(metadata)
        if not presented:
            return None
        stored = self._keys.get(key_id_of(presented))
        # Ids are public: one that no key has costs no digest.
        if stored is None or not hmac.compare_digest(stored.sha256, hashlib.sha256(presented.encode()).hexdigest()):
            raise RpcFailure(
                grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED", "The API key is unknown or was revoked."
            )
        return self._describe(stored.name)


def key_id_of(key: str) -> str:
    """The public part of a key: `thk_<id>`; empty when it does not look like one."""
    parts = key.split("_", 2)
    return f"{parts[0]}_{parts[1]}" if len(parts) == 3 and key.startswith(KEY_PREFIX) else ""


def presented_in(metadata: Mapping[str, str | bytes]) -> str:
    """The credential that was sent, if any; one of a foreign scheme as it stands, to be refused and not overlooked."""
    sent = metadata.get("authorization", "")
    if isinstance(sent, str) and sent:
        return (sent[7:].strip() if sent[:7].lower() == "bearer " else "") or sent
    key = metadata.get("x-api-key", "")
    return key if isinstance(key, str) else ""
