"""Attesting chains whose writers are gone, and removing what is too old to keep."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from toolhub_service.telemetry.audit_rows import COLUMNS, connect, keep_copy, transaction
from toolhub_service.telemetry.audit_verify import fault_of
from toolhub_service.telemetry.checkpoint import ADOPT, PRUNE, Checkpoint, CheckpointFile, parse_line, read_lines
from toolhub_service.telemetry.keyring import Keyring

_UNATTESTED: Final = f"SELECT {COLUMNS} FROM events WHERE writer = ? AND sequence > ? ORDER BY sequence"  # noqa: S608 — fixed


def adopt(connection: sqlite3.Connection, path: Path, file: CheckpointFile, keyring: Keyring) -> None:
    """Check and attest what lies beyond each chain's last checkpoint.

    A chain with a fault is left for `verify` to name, and so is one without any checkpoint: attesting it would
    launder a forgery.
    """
    last: dict[str, Checkpoint] = {}
    for line in read_lines(path):
        checkpoint = parse_line(line, keyring)
        if checkpoint is not None and checkpoint.count >= getattr(last.get(checkpoint.writer), "count", 0):
            last[checkpoint.writer] = checkpoint
    for writer, count in connection.execute("SELECT writer, max(sequence) FROM events GROUP BY writer").fetchall():
        checkpoint = last.get(writer)
        if checkpoint is not None and isinstance(count, int) and count > checkpoint.count:
            _adopt_one(connection, file, keyring, checkpoint)


def _adopt_one(connection: sqlite3.Connection, file: CheckpointFile, keyring: Keyring, last: Checkpoint) -> None:
    count, head = last.count, last.head
    for row in connection.execute(_UNATTESTED, (last.writer, last.count)):
        if fault_of(row, count + 1, head, keyring):
            return
        count, head = row[1], row[10]
    signed = file.append(ADOPT, last.writer, count, head)
    keep_copy(connection, signed.number, signed.line())


def prune(database: Path, file: CheckpointFile, before_unix_ms: int) -> int:
    """Remove each chain's oldest events up to the first that is young enough to stay. The checkpoint comes first: after
    a crash in between, events that may be missing are still there, which is no fault."""
    connection = connect(database)
    removed = 0
    try:
        for writer, count, head in connection.execute(_OLD_ENDS, (before_unix_ms, before_unix_ms)).fetchall():
            signed = file.append(PRUNE, writer, count, head)
            keep_copy(connection, signed.number, signed.line())
            with transaction(connection):
                cursor = connection.execute("DELETE FROM events WHERE writer = ? AND sequence <= ?", (writer, count))
            removed += cursor.rowcount
    finally:
        connection.close()
    return removed


_OLD_ENDS: Final = """
SELECT e.writer, e.sequence, e.mac FROM events e JOIN (
    SELECT writer, coalesce(min(CASE WHEN at_unix_ms >= ? THEN sequence END) - 1, max(sequence)) AS last
    FROM events GROUP BY writer) old
ON e.writer = old.writer AND e.sequence = old.last AND e.at_unix_ms < ?
"""
