"""The SQLite file that the embedded stores share with each other and with the hub's other processes.

Changes go to one thread, which commits them in groups (`sqlite/writer.py`). Reads go to a few threads with their own
connections, which in WAL mode neither wait for the writer nor block it. The event loop itself never touches the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.stores.codec import UnreadableRecord
from toolhub_service.stores.sqlite.writer import (
    Change,
    FileTooNew,
    FileWriter,
    QueuedChange,
    Watch,
    connect,
    connect_to_read,
    unavailable,
)

I = TypeVar("I")  # noqa: E741 — an item
A = TypeVar("A")
T = TypeVar("T")


_DAMAGED = (
    "It is damaged: restore it from a backup; or move it away with its -wal and -shm, and what it held is forgotten: "
    "open jobs and approvals, idempotency keys, pins."
)


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turn what is raised when the file is opened into a ToolFailure with a message for the operator."""
    try:
        yield
    except FileTooNew as error:
        raise _cannot_start(path, f"{error}. Start the newer hub, or move the file away.") from None
    except (sqlite3.OperationalError, OSError) as error:
        raise _cannot_start(path, f"{error}. Look at the folder, its owner and the disk.") from None
    except sqlite3.Error as error:
        raise _cannot_start(path, f"{error}. {_DAMAGED}") from None


def _cannot_start(path: Path, why: str) -> ToolFailure:
    message = f"The hub's own store {path} cannot be opened: {why}"
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, component="store", cause="start")


class SqliteFile:
    """Start it before the stores that share it; close it after them."""

    def __init__(
        self,
        path: Path,
        *,
        readers: int = 2,
        busy_timeout_s: float = 5.0,
        poll_s: float = 0.03,
        connecting: Callable[..., sqlite3.Connection] = connect,
    ) -> None:
        """`poll_s`: how often to look for other processes' changes while somebody listens.

        `connecting` replaces `connect` for a file with another layout.
        """
        self.path = path
        self._connecting = connecting
        self._readers = readers
        self._busy_timeout_s = busy_timeout_s
        self._poll_s = poll_s
        self._writer: FileWriter | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._declared: list[str] = []

    def declare(self, statements: Iterable[str]) -> None:
        """Take statements that create tables and indexes where they are absent.

        Raises RuntimeError after `start`, which executes them.
        """
        declared = tuple(statements)
        if declared and self._writer is not None:
            raise RuntimeError("declare tables before the file is started")
        self._declared += declared

    async def start(self) -> None:
        """Make or migrate the file. Raises ToolFailure TOOL_UNAVAILABLE with a message for the operator."""
        with opening(self.path):
            opened = await asyncio.to_thread(self._connect)
        self._reading = ThreadPoolExecutor(self._readers, "hub-db-reader")
        self._writer = FileWriter(self._connect, opened, asyncio.get_running_loop(), self._poll_s)

    async def close(self) -> None:
        """Make the changes that are queued, then close the file."""
        writer, self._writer = self._writer, None
        reading, self._reading = self._reading, None
        if writer is not None and reading is not None:
            await asyncio.to_thread(writer.stop)
            await asyncio.to_thread(reading.shutdown)
            for connection in self._opened:
                connection.close()
            self._opened.clear()
            self._own = threading.local()

    async def change(self, change: Change[I, A], item: I) -> A:
        """Return the change's answer, once the change is durable.

        Raises ToolFailure TOOL_UNAVAILABLE, and what the change raises.
        """
        if self._writer is None:
            raise unavailable(cause="closed")
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._writer.put(QueuedChange(change, item, answer))
        return await answer

    async def read(self, find: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `find` returns for one snapshot of the file. Raises ToolFailure TOOL_UNAVAILABLE."""
        if self._reading is None:
            raise unavailable(cause="closed")
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read_in_thread, find)

    def watch(self, watch: Watch) -> None:
        """Look for news, first at once, until `unwatch`; does nothing when closed."""
        if self._writer is not None:
            self._writer.watch(watch)

    def unwatch(self, watch: Watch) -> None:
        if self._writer is not None:
            self._writer.unwatch(watch)

    def _connect(self) -> sqlite3.Connection:
        return self._connecting(self.path, busy_timeout_s=self._busy_timeout_s, declared=self._declared)

    def _read_in_thread(self, find: Callable[[sqlite3.Connection], T]) -> T:
        """Run `find` in a reader's thread."""
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return find(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._drop_connection()
            raise unavailable(error) from None
        except UnreadableRecord:
            raise unavailable(cause="record") from None

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = connect_to_read(self.path, busy_timeout_s=self._busy_timeout_s)
            self._opened.append(connection)
        return connection

    def _drop_connection(self) -> None:
        """Drop this thread's connection, so that its next read opens a new one."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is not None:
            self._own.connection = None
            self._opened.remove(connection)
            connection.close()
