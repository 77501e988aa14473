"""Removal of events by age: each chain's oldest, after a signed checkpoint that says up to which sequence.

The checkpoint comes first: after a crash in between, events that may be missing are still there, which is no fault.
Events moved to an archive are on disk there first; after a crash they may be there twice, under the same writer and
sequence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from toolhub_service.stores.audit.checkpoint import PRUNE, CheckpointFile
from toolhub_service.stores.audit.events import EventStore, EventTable, line_of
from toolhub_service.stores.audit.keyring import sync_folder

PASS_EVENTS: Final = 10_000
"""Events of each chain that one checkpoint covers."""
_AT_ONCE: Final = 500
"""Events removed in one transaction, for which the log's writer waits."""
_ARCHIVE_PAGE: Final = 1_000


class EventArchive:
    """A file for each day on which events were moved, of lines as `toolhub audit export --as lines` prints them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, lines: Iterable[bytes]) -> None:
        """Append lines; they are durable when it returns. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / time.strftime("audit-%Y-%m-%d.jsonl", time.gmtime())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=1024 * 1024) as file:
            drop_half_line(file.fileno())
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)


def drop_half_line(descriptor: int) -> None:
    """Cut off what a crash left after the last line feed of a file of lines."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 65_536)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end)


def prune(
    events: EventStore,
    file: CheckpointFile,
    before_unix_ms: int,
    *,
    max_row: int | None = None,
    archive: EventArchive | None = None,
) -> int:
    """Run one pass: remove at most `PASS_EVENTS` of each chain's oldest events; return how many were removed.

    A chain's pass ends at the first event that is young enough to stay or lies behind `max_row`.
    """
    removed = 0
    with closing(events.open(create=False)) as table:
        for writer, count, head in table.old_ends(before_unix_ms, PASS_EVENTS, max_row):
            if archive is not None:
                _move(table, archive, writer, count)
            signed = file.append(PRUNE, writer, count, head)
            table.keep_copy(signed.number, signed.line())
            removed += _remove(table, writer, count)
    return removed


def _move(table: EventTable, archive: EventArchive, writer: str, count: int) -> None:
    lines: list[bytes] = []
    for row in table.beyond(writer, 0):
        if row[1] > count:
            break
        lines.append(line_of(row))
        if len(lines) == _ARCHIVE_PAGE:
            archive.keep(lines)
            lines = []
    if lines:
        archive.keep(lines)


def _remove(table: EventTable, writer: str, count: int) -> int:
    removed, first = 0, table.first_of(writer)
    while first <= count:
        first += _AT_ONCE
        removed += table.remove(writer, min(count, first - 1))
        time.sleep(0)  # lets waiting threads use the database
    return removed


class AuditRetention:
    """The step of an `UpkeepTask`."""

    def __init__(
        self,
        prune_before: Callable[[int, int | None], int],
        unix_ms: Callable[[], int],
        keep_s: float,
        carried: Callable[[], int | None],
        swept: Callable[[str, int], Any],
    ) -> None:
        """`carried`: the last row that all export sinks have; None where there is none.

        `swept` gets the number removed.
        """
        self._prune_before = prune_before
        self._unix_ms = unix_ms
        self._keep_ms = round(keep_s * 1_000)
        self._carried = carried
        self._swept = swept

    def step(self) -> bool:
        removed = self._prune_before(self._unix_ms() - self._keep_ms, self._carried())
        if removed:
            self._swept("audit events", removed)
        return removed > 0
