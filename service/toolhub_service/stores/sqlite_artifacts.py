"""Records of artifacts in the hub's own file, shared by its processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from toolhub_service.domain.artifact import Artifact
from toolhub_service.stores.codec import decode_artifact, encode_artifact, readable
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_file_rows import insert
from toolhub_service.stores.sqlite_file_writer import Change


class SqliteArtifacts:
    """Implements `ArtifactRecords`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def add(self, artifact: Artifact) -> None:
        await self._file.change(_ADDING, artifact)

    async def get(self, artifact_id: str) -> Artifact | None:
        return await self._file.read(partial(_read, artifact_id=artifact_id))

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]:
        return await self._file.read(partial(_expired, now_unix_ms=now_unix_ms, limit=limit))

    async def remove(self, artifact_id: str) -> bool:
        return await self._file.change(_REMOVING, artifact_id)

    async def usage(self, principal: str) -> tuple[int, int]:
        return await self._file.read(partial(_usage, principal=principal))

    async def start(self) -> None:
        """The file is open."""

    async def close(self) -> None:
        """The file is closed by its owner."""


def _add_all(connection: sqlite3.Connection, artifacts: Sequence[Artifact]) -> list[None]:
    rows = [
        (
            each.artifact_id,
            each.sha256,
            each.principal,
            each.size_bytes,
            each.expires_at_unix_ms,
            encode_artifact(each),
        )
        for each in artifacts
    ]
    insert(connection, "artifacts (artifact_id, sha256, principal, size_bytes, expires_at_unix_ms, record)", rows)
    return [None] * len(rows)


def _remove_all(connection: sqlite3.Connection, artifact_ids: Sequence[str]) -> list[bool]:
    return [_remove(connection, artifact_id) for artifact_id in artifact_ids]


def _remove(connection: sqlite3.Connection, artifact_id: str) -> bool:
    removed = connection.execute("DELETE FROM artifacts WHERE artifact_id = ? RETURNING sha256", (artifact_id,))
    row = removed.fetchone()
    removed.close()
    if row is None:
        return False
    return connection.execute("SELECT 1 FROM artifacts WHERE sha256 = ? LIMIT 1", row).fetchone() is None


def _usage(connection: sqlite3.Connection, principal: str) -> tuple[int, int]:
    sql = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM artifacts WHERE principal = ?"
    count, size_bytes = connection.execute(sql, (principal,)).fetchone()
    return count, size_bytes


def _read(connection: sqlite3.Connection, artifact_id: str) -> Artifact | None:
    row = connection.execute("SELECT record FROM artifacts WHERE artifact_id = ?", (artifact_id,)).fetchone()
    return None if row is None else _artifact_of(row)


def _expired(connection: sqlite3.Connection, now_unix_ms: int, limit: int) -> list[Artifact]:
    sql = "SELECT record FROM artifacts WHERE expires_at_unix_ms <= ? ORDER BY expires_at_unix_ms, artifact_id LIMIT ?"
    return readable(connection.execute(sql, (now_unix_ms, limit)), _artifact_of)


def _artifact_of(row: Sequence[Any]) -> Artifact:
    return decode_artifact(row[0])


_ADDING: Change[Artifact, None] = Change(_add_all)
_REMOVING: Change[str, bool] = Change(_remove_all)
