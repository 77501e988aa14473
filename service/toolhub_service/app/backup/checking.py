"""Checks an unpacked backup: databases by SQLite and their layout, the audit log by its chains and checkpoints,
artifacts by the records that name them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolhub_service.app.backup.parts import (
    ARTIFACTS,
    AUDIT,
    AUDIT_KEY,
    CHECKPOINTS,
    DAMAGED,
    HUB,
    LAYOUTS,
    BackupRefused,
    Manifest,
)
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.verify import verify_log
from toolhub_service.stores.sqlite.cut import damage_of, layout_at


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found to be intact."""

    events: int
    """Audit events whose chains were checked; 0 when they were not."""
    chains: int
    artifacts: int
    """Artifacts that records name and whose bytes are there."""
    missing_artifacts: int
    """Artifacts whose bytes were gone when the backup was made."""
    unverified: str = ""
    """Why the audit log was not verified; empty when it was, or there is none."""


def check(folder: Path, manifest: Manifest, audit_key: Path) -> Checked:
    """Check an unpacked backup. `audit_key` is used when the backup has none. Raises BackupRefused."""
    try:
        for name, layout in {**dict.fromkeys(_databases_in(folder), -1), **manifest.layouts}.items():
            _check_database(folder / name, name, layout)
        found, missing = _check_artifacts(folder)
        events, chains, unverified = _check_audit(folder, audit_key)
    except sqlite3.Error as broken:
        raise BackupRefused(f"A database cannot be read: {broken}. {DAMAGED}") from broken
    return Checked(events, chains, found, missing, unverified)


def _databases_in(folder: Path) -> list[str]:
    return [name for name in LAYOUTS if (folder / name).is_file()]


def _check_database(path: Path, name: str, layout: int) -> None:
    newest = LAYOUTS.get(name)
    if newest is None or not path.is_file():
        raise BackupRefused(f"The backup lacks {name}, or does not know it. {DAMAGED}")
    if layout_at(path) != layout:
        raise BackupRefused(f"{name} has another layout than the manifest says. {DAMAGED}")
    if layout > newest:
        raise BackupRefused(f"{name} was written by a later version of tool-hub: restore it with that one.")
    if damage := damage_of(path):
        raise BackupRefused(f"{name}: {damage}. {DAMAGED}")


def _check_artifacts(folder: Path) -> tuple[int, int]:
    """Return how many digests the records name with bytes, and without. Each file's own digest must be its name."""
    hub, place = folder / HUB, folder / ARTIFACTS
    if not hub.is_file():
        return 0, 0
    with closing(sqlite3.connect(hub)) as connection:
        named = {digest for (digest,) in connection.execute("SELECT DISTINCT sha256 FROM artifacts")}
    found = sum((place / digest[:2] / digest[2:]).is_file() for digest in named)
    return found, len(named) - found


def _check_audit(folder: Path, audit_key: Path) -> tuple[int, int, str]:
    if not (folder / AUDIT).is_file():
        return 0, 0, ""
    key = folder / AUDIT_KEY if (folder / AUDIT_KEY).is_file() else audit_key
    if not key.is_file():
        return 0, 0, f"the backup has no {AUDIT_KEY}, and there is none at {audit_key}"
    try:
        verified = verify_log(folder / AUDIT, folder / CHECKPOINTS, open_keyring(key, create=False))
    except HubFailure as unusable:
        raise BackupRefused(unusable.message) from unusable
    if verified.faults:
        fault = verified.faults[0]
        raise BackupRefused(
            f"The audit log does not verify: writer {fault.writer}, sequence {fault.sequence}: {fault.reason}. "
            "`toolhub audit verify` says whether the hub's own does."
        )
    return verified.events_checked, verified.writers, ""


@contextmanager
def draft_in(place: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder (mode 0700). Raises BackupRefused."""
    folder = place / f".{name}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as refused:
        raise BackupRefused(f"{folder}: {refused.strerror}") from refused
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
