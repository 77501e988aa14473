"""Copies several SQLite files as of one moment, while other processes go on writing them.

For a few milliseconds nobody else can write any of the files: their write locks are held while a reader of each begins
its snapshot. From then on the readers see that moment, however long the copying takes, and writers do not wait for them
(WAL). So a copy is what a power cut at that moment would have left, from which every start can recover.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

_WAIT_S: Final = 30.0


@contextmanager
def cut(files: Mapping[str, Path]) -> Iterator[dict[str, sqlite3.Connection]]:
    """Yield a read-only connection to each file by its name, all in snapshots of one moment.

    Raises sqlite3.Error when a file is no database, or another process has been writing one of them for half a minute.
    """
    with ExitStack() as readers:
        with ExitStack() as writers:
            for path in files.values():
                lock = writers.enter_context(closing(_connect(path)))
                lock.execute("BEGIN IMMEDIATE")
                writers.callback(lock.rollback)
            snapshots: dict[str, sqlite3.Connection] = {}
            for name, path in files.items():
                snapshots[name] = reader = readers.enter_context(closing(_connect(path)))
                reader.execute("PRAGMA query_only = 1")
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the snapshot begins with a read
        yield snapshots


def copy_to(snapshot: sqlite3.Connection, path: Path) -> None:
    """Copy the snapshot to a new file (mode 0600, no -wal), which is on disk when this returns.

    Raises sqlite3.Error, OSError.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = FULL")
        snapshot.backup(copy)  # within the reader's transaction, and so of its moment
        copy.execute("PRAGMA journal_mode = DELETE")


def layout_of(snapshot: sqlite3.Connection) -> int:
    """Return the version of the file's layout (PRAGMA user_version)."""
    (version,) = snapshot.execute("PRAGMA user_version").fetchone()
    return int(version)


def layout_at(path: Path) -> int:
    """Return `layout_of` a file. Raises sqlite3.Error."""
    with closing(_connect(path)) as connection:
        return layout_of(connection)


def damage_of(path: Path) -> str:
    """Return what SQLite finds wrong with the file; empty when nothing is.

    Raises sqlite3.Error when it is no database.
    """
    with closing(_connect(path)) as connection:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if answer == "ok" else " ".join(answer.split())


def is_open_elsewhere(path: Path) -> bool:
    """Return whether another connection, of any process of this machine, has the file open: each holds a shared lock on
    it as long as it lives (WAL)."""
    if not path.exists():
        return False
    with closing(_connect(path, wait_s=0.0)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first read: lock the file, not the WAL
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as busy:
            return getattr(busy, "sqlite_errorname", "").startswith("SQLITE_BUSY")
        except sqlite3.DatabaseError:
            return False  # no database: nobody writes it
    return False


def _connect(path: Path, *, wait_s: float = _WAIT_S) -> sqlite3.Connection:
    uri = path.absolute().as_uri() + "?mode=rw"  # never recreates a missing file
    return sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
