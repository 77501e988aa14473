"""Credentials of sources over any `RecordStore`. Texts chosen by callers become columns as digests only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import orjson

from toolhub_service.domain.credential import CredentialKey, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.stores.codec import UnreadableRecord, decode_credential, encode_credential
from toolhub_service.stores.declared_table import declare_table
from toolhub_service.stores.record_store import Column, Records, Where


def credential_id(key: CredentialKey) -> str:
    """Return the record's name: a digest over its parts, whatever characters they have."""
    return _digest(*key)


def _digest(*parts: str) -> str:
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


CREDENTIALS: Final = declare_table(
    "credentials",
    Column[StoredCredential]("credential_id", str, lambda credential: credential_id(credential.key)),
    Column("version", int),
    Column("owner", str, lambda credential: _digest(credential.tenant, credential.principal), list_name="of"),
    Column("source", str, list_name="source"),
    Column("changed_at_unix_ms", int),
    key=("credential_id",),
    order=("changed_at_unix_ms", "credential_id"),
    encode=encode_credential,
    decode=decode_credential,
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
