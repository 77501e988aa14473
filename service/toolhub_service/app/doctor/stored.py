"""Is what the hub keeps whole: its databases, its keys? Looked at without changing a byte, whether a hub runs or not.

SQLite's own `quick_check` (sqlite.org/pragma.html) finds damaged pages, which a hub meets only when it comes to them.
What needs the audit log read event by event is left to `toolhub audit verify`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from toolhub_service.app.doctor.findings import Finding, fail, ok
from toolhub_service.app.files import SecretFileInvalid, read_or_make_key
from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import HubFailure
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.sqlite_schema import MIGRATIONS

_READ_MAX_BYTES = 256 * 1024**2
"""A larger file is only opened: to read it all would take longer than somebody waits."""
_RESTORE = "Keep a copy, and restore it from a backup; docs/operations.md tells what is lost without one."


def kept_checks(settings: Settings) -> Iterator[Finding]:
    """Files that are not there yet are no trouble: the hub makes them."""
    paths, stores = Paths(settings), settings.stores
    if not stores.postgres_url:
        yield from _database("audit log", paths.audit)
    yield from _audit_key(paths, has_events=paths.audit.exists() and not stores.postgres_url)
    if not stores.redis_url and stores.kind == "sqlite":
        yield from _database("hub's store", paths.stores, version_max=len(MIGRATIONS))
    yield from _plan_key(paths.plan_key)


def _database(name: str, path: Path, version_max: int = 0) -> Iterator[Finding]:
    try:
        if not path.exists():
            return
        size_bytes = path.stat().st_size
        problem, version = _looked_at(path, is_read_whole=size_bytes <= _READ_MAX_BYTES)
    except sqlite3.OperationalError as unreadable:
        yield fail(name, f"{path}: {unreadable}", "Look at its owner and mode, and at the disk.")
    except (sqlite3.DatabaseError, OSError) as damaged:
        yield fail(name, f"{path}: {damaged}", _RESTORE)
    else:
        if problem:
            yield fail(name, f"{path} is damaged: {problem}", _RESTORE)
        elif version_max and version > version_max:
            told = f"{path} has version {version}, and this hub knows {version_max}"
            yield fail(name, told, "Start the newer hub, or move the file away.")
        else:
            how = "whole" if size_bytes <= _READ_MAX_BYTES else "can be opened; too large to be read here"
            yield ok(name, f"{path}, {size_bytes / 1024**2:,.1f} MiB, {how}")


def _looked_at(path: Path, *, is_read_whole: bool) -> tuple[str, int]:
    """(what is wrong, layout version). Without a log beside it nobody writes, and SQLite need make no file to read."""
    has_log = path.with_name(f"{path.name}-wal").exists()
    uri = path.absolute().as_uri() + ("?mode=ro" if has_log else "?immutable=1")
    with closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not is_read_whole:
            return "", version
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return ("" if said == "ok" else " ".join(said.split())), version


def _audit_key(paths: Paths, *, has_events: bool) -> Iterator[Finding]:
    if not paths.audit_key.exists() and not has_events:
        return
    try:
        open_keyring(paths.audit_key, create=False)
    except HubFailure as unusable:
        if unusable.reason != "AUDIT_KEY_EXPOSED":  # told among the key files
            yield fail("audit key", unusable.message, "Restore it from a backup: nothing else verifies what it sealed.")
    except OSError as unreadable:
        yield fail("audit key", f"{paths.audit_key}: {unreadable.strerror}", "Let the hub's user read it.")


def _plan_key(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            read_or_make_key(path)
    except SecretFileInvalid as invalid:
        yield fail("plan key", str(invalid), "Remove it, or restore it: without it open plans must be shown again.")
    except OSError as unreadable:
        yield fail("plan key", f"{path}: {unreadable.strerror}", "Let the hub's user read it.")
