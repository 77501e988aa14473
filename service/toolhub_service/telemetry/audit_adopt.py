"""Attesting chains whose writers are gone, and removing what is too old to keep."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from toolhub_service.telemetry.audit_store import EventStore, EventTable
from toolhub_service.telemetry.audit_verify import fault_of
from toolhub_service.telemetry.checkpoint import ADOPT, PRUNE, Checkpoint, CheckpointFile, parse_line, read_lines
from toolhub_service.telemetry.keyring import Keyring


def adopt(table: EventTable, path: Path, file: CheckpointFile, keyring: Keyring) -> None:
    """Check and attest what lies beyond each chain's last checkpoint.

    A chain with a fault is left for `verify` to name, and so is one without any checkpoint: attesting it would
    launder a forgery.
    """
    last: dict[str, Checkpoint] = {}
    for line in read_lines(path):
        checkpoint = parse_line(line, keyring)
        if checkpoint is not None and checkpoint.count >= getattr(last.get(checkpoint.writer), "count", 0):
            last[checkpoint.writer] = checkpoint
    for writer, count in table.ends():
        checkpoint = last.get(writer)
        if checkpoint is not None and isinstance(count, int) and count > checkpoint.count:
            _adopt_one(table, file, keyring, checkpoint)


def _adopt_one(table: EventTable, file: CheckpointFile, keyring: Keyring, last: Checkpoint) -> None:
    count, head = last.count, last.head
    for row in table.beyond(last.writer, last.count):
        if fault_of(row, count + 1, head, keyring):
            return
        count, head = row[1], row[10]
    signed = file.append(ADOPT, last.writer, count, head)
    table.keep_copy(signed.number, signed.line())


def attest_events(lines: Iterable[bytes], keyring: Keyring) -> bool:
    """Whether genuine checkpoint lines say that some chain holds events which were not pruned."""
    held: dict[str, int] = {}
    pruned: dict[str, int] = {}
    for line in lines:
        if (checkpoint := parse_line(line, keyring)) is not None:
            counts = pruned if checkpoint.kind == PRUNE else held
            counts[checkpoint.writer] = max(checkpoint.count, counts.get(checkpoint.writer, 0))
    return any(count > pruned.get(writer, 0) for writer, count in held.items())


def prune(events: EventStore, file: CheckpointFile, before_unix_ms: int) -> int:
    """Remove each chain's oldest events up to the first that is young enough to stay. The checkpoint comes first: after
    a crash in between, events that may be missing are still there, which is no fault."""
    removed = 0
    with closing(events.open(create=False)) as table:
        for writer, count, head in table.old_ends(before_unix_ms):
            signed = file.append(PRUNE, writer, count, head)
            table.keep_copy(signed.number, signed.line())
            removed += table.remove(writer, count)
    return removed
