"""Continuous export of the log to a sink, such as a file or a bucket: every event at least once, in commit order.

A cursor for each sink is the row up to which it has everything. The cursor moves once the sink has confirmed a batch,
and is on disk before the next batch; so a crash sends a batch again, and an unreachable sink only grows the backlog.
Readers deduplicate events by writer and sequence. The cursor also holds the tag of the last event that was sent: if
that tag differs, the log was restored from a backup, and everything is sent again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from toolhub_service.stores.audit.events import EventStore, line_of
from toolhub_service.stores.audit.keyring import sync_folder
from toolhub_service.stores.audit.retention import drop_half_line

BATCH_EVENTS: Final = 1_000
BATCH_BYTES: Final = 1024 * 1024
"""Size of a batch's lines; a larger event is a batch by itself. Below the 4 MiB that gRPC servers accept."""
_WRITER, _SEQUENCE, _AT = 1, 2, 3
"""Indexes into a row of a batch."""


class Cursor(msgspec.Struct, frozen=True):
    """The last event that a sink has."""

    row: int = 0
    writer: str = ""
    sequence: int = 0
    mac: str = ""


class Batch(msgspec.Struct, frozen=True):
    rows: Sequence[tuple[Any, ...]]
    """Each is the row's number, then the columns of `COLUMNS`."""
    lines: Sequence[bytes]
    """As `toolhub audit export --as lines` prints them, each with its line feed."""


class Sink(Protocol):
    @property
    def name(self) -> str:
        """The name in metrics and of the cursor; it must never change."""
        ...

    def send(self, batch: Batch) -> int:
        """Send a batch, called in a thread; return how many of its events the sink has refused for good.

        The sink has the batch when this returns. Raises any error that means the sink is unreachable; bounded in time.
        """
        ...

    def close(self) -> None: ...


class ExportObserver(Protocol):
    """Called from threads."""

    def on_export(self, sink: str, events: int, refused: int) -> None: ...

    def backlog(self, sink: str, events: int) -> None: ...

    def begins_anew(self, sink: str) -> None:
        """The log is not the one exported so far: all of it is sent again."""
        ...


class Export:
    """The step of an `UpkeepTask`: sends one batch to one sink."""

    def __init__(self, events: EventStore, sink: Sink, observer: ExportObserver) -> None:
        self._events = events
        self._sink = sink
        self._observer = observer
        self._cursor: Cursor | None = None

    def last_sent_row(self) -> int:
        """Return the last row that the sink has, as far as this process or its disk knows."""
        return (self._cursor or self._read_cursor()).row

    def step(self) -> bool:
        """Send the next batch; return whether more is waiting. Raises what the sink and the store raise."""
        cursor = self._read_cursor()  # another process may have moved it since
        with closing(self._events.open(create=False)) as table:
            if cursor.row and not self._fits(cursor, table.tag_at(cursor.row)):
                self._observer.begins_anew(self._sink.name)
                cursor = Cursor()
            batch = _cut(table.news(cursor.row, BATCH_EVENTS))
        self._cursor = cursor
        last_row = self._events.last_row()
        if not batch.rows:
            self._observer.backlog(self._sink.name, 0)
            return False
        self._observer.backlog(self._sink.name, max(len(batch.rows), last_row - cursor.row))
        # Bounded for every sink: a counter that went down, or a number beyond the batch, would be wrong for ever.
        refused = min(max(0, self._sink.send(batch)), len(batch.rows))
        row, writer, sequence = batch.rows[-1][:3]
        self._cursor = Cursor(row, writer, sequence, batch.rows[-1][11])
        self._events.keep_cursor(self._sink.name, msgspec.json.encode(self._cursor).decode())
        self._observer.on_export(self._sink.name, len(batch.rows), refused)
        self._observer.backlog(self._sink.name, max(0, last_row - row))
        return bool(last_row > row)

    def _read_cursor(self) -> Cursor:
        text = self._events.cursor(self._sink.name)
        return msgspec.json.decode(text, type=Cursor) if text else Cursor()

    def _fits(self, cursor: Cursor, tag: str | None) -> bool:
        """Return whether the cursor belongs to this log.

        A missing event was removed by age, unless the log is too short.
        """
        return tag == cursor.mac if tag is not None else self._events.last_row() >= cursor.row


def read_sent_row(events: EventStore, sink: str) -> int:
    """Return an upper bound of the events that the sink does not have yet."""
    text = events.cursor(sink)
    return max(0, events.last_row() - (msgspec.json.decode(text, type=Cursor).row if text else 0))


def _cut(rows: Sequence[tuple[Any, ...]]) -> Batch:
    lines: list[bytes] = []
    size_bytes = 0
    for row in rows:
        line = line_of(row[1:])
        size_bytes += len(line)
        if lines and size_bytes > BATCH_BYTES:
            break
        lines.append(line)
    return Batch(rows[: len(lines)], lines)


def least(carried: Sequence[Callable[[], int]]) -> Callable[[], int | None]:
    """Return the row up to which every sink has everything; None when there is no sink."""
    return lambda: min((each() for each in carried), default=None)


class FileSink:
    """Appends to one file, and renames it once it reaches its maximum size.

    It is opened for each batch, so that other programs may move it.
    """

    name: Final = "file"

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def send(self, batch: Batch) -> int:
        """Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
            drop_half_line(file.fileno())
            data = memoryview(b"".join(batch.lines))
            while data:
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())
            is_full = os.fstat(file.fileno()).st_size >= self._max_bytes
        if is_full:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            name = f"{self._path.stem}-{stamp}-{batch.rows[-1][0]:012d}{self._path.suffix}"
            self._path.rename(self._path.with_name(name))
        sync_folder(self._path.parent)
        return 0

    def close(self) -> None:
        """Nothing is open."""


class BucketSink:
    """Puts an object for each batch, named by day and rows: a batch that is sent again, and has not grown, is the
    same."""

    name: Final = "bucket"

    def __init__(self, put: Callable[[str, bytes], object]) -> None:
        """`put` stores an object of that name and content durably, or raises when the bucket is unreachable."""
        self._put = put

    def send(self, batch: Batch) -> int:
        first, last = batch.rows[0], batch.rows[-1]
        day = time.strftime("%Y/%m/%d", time.gmtime(first[_AT] / 1_000))
        # A restored log numbers its rows again: the last event distinguishes the two.
        self._put(
            f"{day}/{first[0]:012d}-{last[0]:012d}-{last[_WRITER]}-{last[_SEQUENCE]}.jsonl", b"".join(batch.lines)
        )
        return 0

    def close(self) -> None:
        """Nothing to do: connections end with the process."""
