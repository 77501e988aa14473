"""Credentials of sources over any `RecordStore`. Texts chosen by callers become columns as digests only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import orjson

from toolhub_service.domain.credential import CredentialKey, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.stores.codec import UnreadableRecord, decode_credential, encode_credential
from toolhub_service.stores.record_store import Records, Table, Where


def credential_id(key: CredentialKey) -> str:
    """Return the record's name: a digest over its parts, whatever characters they have."""
    return _digest(*key)


def _digest(*parts: str) -> str:
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def _row(credential: StoredCredential) -> dict[str, Any]:
    return {
        "credential_id": credential_id(credential.key),
        "version": credential.version,
        "owner": _digest(credential.tenant, credential.principal),
        "source": credential.source,
        "changed_at_unix_ms": credential.changed_at_unix_ms,
    }


CREDENTIALS: Final = Table(
    "credentials",
    ("credential_id",),
    _row,
    encode_credential,
    decode_credential,
    order=("changed_at_unix_ms", "credential_id"),
)


class Credentials(Records[StoredCredential]):
    """Implements `CredentialStore`."""

    async def put(self, credential: StoredCredential) -> bool:
        return await self._records.put([credential])

    async def get(self, key: CredentialKey) -> StoredCredential | None:
        try:
            found = await self._records.get((credential_id(key),))
        except UnreadableRecord:
            message = f"The credential for source `{key.source}` cannot be read: its record is damaged, or was written "
            message += f"by a newer hub. Revoke it (`toolhub credentials revoke {key.source}`) and give it again."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, cause="record") from None
        return found

    async def page(
        self, *, owner: tuple[str, str] | None, source: str, after: tuple[int, str] | None, limit: int
    ) -> Sequence[StoredCredential]:
        where = Where({"owner": "" if owner is None else _digest(*owner), "source": source})
        found, _ = await self._records.page(where, after=after, limit=limit)
        return found

    def place(self, credential: StoredCredential) -> tuple[int, str]:
        return credential.changed_at_unix_ms, credential_id(credential.key)
