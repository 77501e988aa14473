"""Checks stored data: databases, keys and files, retention, and whether the audit log reaches its export places.

The checks change no byte, whether a hub runs or not. SQLite's own `quick_check` (sqlite.org/pragma.html) finds damaged
pages, which a hub meets only when it reads them. Of the audit log the newest events are verified, and a finding says
how many; all of a long log takes `toolhub audit verify`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from toolhub_service.app.config_files.modes import repairs
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.doctor import Finding, State, fail, ok, shown_size, warn
from toolhub_service.app.expiry_watch import clock_behind_s
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.export import read_sent_row
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.sqlite import SqliteEvents, connect_to_look
from toolhub_service.stores.audit.verify_recent import RecentVerified, verify_recent

_DAY_S = 86_400.0
_GROUP_AND_OTHERS = 0o077
# A larger database is only opened: reading it all would take longer than a user waits.
_READ_MAX_BYTES = 256 * 1024**2
_RESTORE = "Keep a copy, and restore it from a backup; docs/backup.md says what is lost without one."
_BACKLOG = 100_000
_FREE = 0.05
_AUDIT = "audit log"


def retention_checks(settings: Settings) -> Iterator[Finding]:
    """Report the retention of everything, each place of `audit.export`, and the free space."""
    audit, workspace = settings.audit, settings.workspace
    kept = {
        "audit events": audit.keep_days,
        "workspaces": workspace.keep_days if workspace.per in ("request", "session") else 0.0,
        "jobs": settings.jobs.keep_s / _DAY_S,
        "approvals": settings.approvals.keep_s / _DAY_S,
        "artifacts": settings.artifacts.ttl_s / _DAY_S,
    }
    yield ok("retention", ", ".join(f"{what} {_days(days)}" for what, days in kept.items()))
    yield from _room(Paths(settings).data_dir)
    yield from clock_check(settings)
    for name in ("file", "otlp_endpoint", "bucket_url"):
        if getattr(audit.export, name):
            yield _place(settings, name)


def clock_check(settings: Settings) -> Iterator[Finding]:
    """Compare this machine's clock with the newest event of the audit log."""
    if settings.stores.postgres_url or not Paths(settings).audit.exists():
        return
    try:
        newest_unix_ms = SqliteEvents(Paths(settings).audit, only_looks=True).newest_unix_ms()
    except sqlite3.Error:  # another check reports it
        return
    if behind_s := clock_behind_s(newest_unix_ms, int(time.time() * 1_000)):
        text = f"{behind_s:,.0f} s behind the newest audit event"
        yield fail("clock", text, "Set it (NTP), or find who set it ahead: what expires would do so too late.")
    else:
        yield ok("clock", "not behind the newest audit event")


def _days(days: float) -> str:
    return f"{days:g} days" if days else "for ever"


def _room(data_dir: Path) -> Iterator[Finding]:
    with suppress(OSError):  # a folder that does not exist yet has no free space to check
        usage = shutil.disk_usage(data_dir)
        if usage.free < usage.total * _FREE:
            text = f"{usage.free / usage.total:.0%} of the disk of {data_dir} are free"
            advice = "Make room, or set audit.keep_days and workspace.keep_days: calls are refused when it is full."
            yield warn("room", text, advice)


def _place(settings: Settings, name: str) -> Finding:
    title = f"audit to {name.partition('_')[0]}"
    if name == "file":
        folder = next(
            each for each in Path(settings.audit.export.file).expanduser().absolute().parents if each.exists()
        )
        if not os.access(folder, os.W_OK):
            return fail(title, f"{folder} cannot be written", "Change its owner, or name another file.")
    if settings.stores.postgres_url or not Paths(settings).audit.exists():
        return ok(title, "the metric toolhub_audit_export_backlog says how far behind it is")
    try:
        behind = read_sent_row(SqliteEvents(Paths(settings).audit, only_looks=True), name.partition("_")[0])
    except (sqlite3.Error, ValueError):
        return warn(title, "how far it is cannot be read", "See what is said of the audit log.")
    if behind > _BACKLOG:
        advice = "See to it, for nothing leaves the log before: `audit_upkeep_failed` in the hub's log says why."
        return warn(title, f"{behind} events behind", advice)
    return ok(title, f"{behind} events behind")


def kept_checks(settings: Settings) -> Iterator[Finding]:
    """Check the files; missing ones are no problem here, because the hub makes them, or `start_checks` has told."""
    paths, stores = Paths(settings), settings.stores
    if stores.postgres_url:
        yield ok("audit log", "in PostgreSQL, and not verified here: `toolhub audit verify` asks the running hub")
    else:
        yield from _audit_log(paths)
    if not stores.redis_url and stores.kind == "sqlite":
        yield from _database("hub's store", paths.stores)
    yield from _database("memory", paths.memory)


def _audit_log(paths: Paths) -> Iterator[Finding]:
    """Verify the newest events, and say how many."""
    for finding in _database(_AUDIT, paths.audit):
        if finding.state is not State.OK:
            yield finding
            return
        try:
            keyring = open_keyring(paths.audit_key, create=False)
            events = SqliteEvents(paths.audit, only_looks=True)
            found = verify_recent(events, paths.audit_checkpoints, keyring)
        except (HubFailure, OSError):  # keeps the hub from starting
            return
        except sqlite3.Error as damaged:
            yield fail(_AUDIT, f"{paths.audit}: {damaged}", _RESTORE)
            return
        yield _report_verified(found, finding.text)


def _report_verified(found: RecentVerified, file: str) -> Finding:
    count = found.verification.events_checked
    events = f"{count:,} event{'' if count == 1 else 's'}"
    if found.verification.faults:
        fault = found.verification.faults[0]
        where = f"writer {fault.writer}, sequence {fault.sequence}: " if fault.writer else ""
        text = f"it was changed: {where}{fault.reason}"
        return fail(_AUDIT, text, f"Run `toolhub audit verify` for all of it. {_RESTORE}")
    if found.are_all:
        return ok(_AUDIT, f"{file}; all {events} and every checkpoint verified")
    text = f"{file}; the newest {events} and checkpoints verified, the others not: `toolhub audit verify` checks all"
    return ok(_AUDIT, text)


def _database(name: str, path: Path) -> Iterator[Finding]:
    try:
        if not path.exists():
            return
        size_bytes = path.stat().st_size
        problem = _damage_of(path) if size_bytes <= _READ_MAX_BYTES else ""
    except sqlite3.OperationalError as unreadable:
        yield fail(name, f"{path}: {unreadable}", "Check its owner and mode, and the disk.")
    except (sqlite3.DatabaseError, OSError) as damaged:
        yield fail(name, f"{path}: {damaged}", _RESTORE)
    else:
        if problem:
            yield fail(name, f"{path} is damaged: {problem}", _RESTORE)
        else:
            how = (
                "SQLite finds no damage" if size_bytes <= _READ_MAX_BYTES else "too large to search it for damage here"
            )
            yield ok(name, f"{path}, {shown_size(size_bytes)}, {how}")


def _damage_of(path: Path) -> str:
    """Return what is wrong, or an empty text. Raises sqlite3.Error and OSError."""
    with closing(connect_to_look(path)) as connection:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return "" if answer == "ok" else " ".join(answer.split())


def file_checks(settings: Settings, config_file: Path | None) -> Iterator[Finding]:
    """Check whether other users may write files that decide over calls, or read a key."""
    yield from _loose_files(settings, config_file)
    yield from _secret_files(Paths(settings))


def _loose_files(settings: Settings, config_file: Path | None) -> Iterator[Finding]:
    """Yield the loose files, with which the hub itself refuses to start."""
    commands = repairs(settings, config_file)
    tell = fail if settings.loose_files == "refuse" else warn
    for command in commands:
        yield tell("file modes", "other users may write files that this hub trusts, or read a key", command)
    if not commands:
        yield ok("file modes", "other users cannot write policy, keys, sources, databases and the folders above them")


def _secret_files(paths: Paths) -> Iterator[Finding]:
    """Yield files with keys that others than their owner may read."""
    exposed = [file for file in _existing_secrets(paths) if file.stat().st_mode & _GROUP_AND_OTHERS]
    for file in exposed:
        yield fail("key files", f"{file} can be read by others", f"chmod 600 {file}, and consider its keys known.")
    if not exposed:
        yield ok("key files", "readable by their owner only" if any(_existing_secrets(paths)) else "none yet")


def _existing_secrets(paths: Paths) -> Iterator[Path]:
    for file in (paths.audit_key, paths.plan_key, paths.api_keys, paths.credentials_key, paths.backup_key):
        if file.exists() and os.access(file.parent, os.X_OK):
            yield file
