"""Restores a backup: unpacks and checks it beside the data folder, and only then moves it into place.

Nothing is overwritten: existing files prevent the restore, or with `replace` are moved to `before-restore-<time>` in
the data folder. No hub may run on the folder, because it would write files that are being moved away.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolhub_service.app.backup.checking import Checked, check, draft_in
from toolhub_service.app.backup.parts import (
    ARTIFACTS,
    AUDIT,
    AUDIT_KEY,
    HUB,
    LAYOUTS,
    MEMORY,
    PARTS,
    BackupRefused,
    Manifest,
    PartKind,
    elsewhere,
    make_folder,
)
from toolhub_service.app.backup.reading import unpack
from toolhub_service.app.backup.signing import Trust
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.runner_locks import RunnerLocks
from toolhub_service.app.wiring.audit import audit_log_of
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import known_secrets
from toolhub_service.stores.audit.keyring import sync_folder
from toolhub_service.stores.sqlite.cut import is_open_elsewhere, layout_at
from toolhub_service.stores.sqlite.writer import alone_in


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    checked: Checked
    signed_by: str
    """The trusted public key that has signed it; empty when none has, which was allowed."""
    moved_to: Path | None = None
    """The folder of the previous files; None when there were none, and when nothing was restored."""
    unrecorded: str = ""
    """Why the audit log does not record the restore; empty when it does."""


def inspect_backup(backup: Path, audit_key: Path, trust: Trust) -> Restored:
    """Read and check the backup in a temporary folder, which needs room for all of it. Raises BackupRefused."""
    with draft_in(Path(tempfile.gettempdir()), "toolhub-backup") as draft:
        unpacked = unpack(backup, draft, trust)
        return Restored(unpacked.manifest, check(draft, unpacked.manifest, audit_key), unpacked.signed_by)


def restore(settings: Settings, backup: Path, trust: Trust, *, replace: bool, dry_run: bool) -> Restored:
    """Put the parts of the backup where the settings have them.

    Raises BackupRefused, after which everything is as before unless the message says otherwise.
    """
    paths = Paths(settings)
    if not backup.exists():
        raise BackupRefused(f"There is no backup {backup}.")
    _check_place(paths, replace=replace)
    if dry_run:
        found = inspect_backup(backup, paths.audit_key, trust)
        _check_settings(settings, found.manifest)
        return found
    paths.make()
    with draft_in(paths.data_dir, "restore") as draft:
        unpacked = unpack(backup, draft, trust)
        manifest = unpacked.manifest
        checked = check(draft, manifest, paths.audit_key)
        _check_settings(settings, manifest)
        os.sync()  # one sync for all: with thousands of artifacts each would wait for the disk
        try:
            with alone_in(paths.data_dir):  # a hub that starts now waits until all files are there
                _check_place(paths, replace=replace)
                moved_to = _place_all(draft, manifest, paths)
        except OSError as failed:
            raise BackupRefused(
                f"{failed.filename}: {failed.strerror}. The data folder is restored in part: mend that, and restore "
                "again with --replace."
            ) from failed
    facts = {
        "restored_from": backup.name,
        "backup_made_at_unix_ms": str(manifest.made_at_unix_ms),
        "backup_signed_by": unpacked.signed_by or "nobody known (--allow-unsigned)",
    }
    has_log = AUDIT in manifest.parts or bool(settings.stores.postgres_url)
    unrecorded = asyncio.run(_record(settings, facts)) if has_log else ""
    return Restored(manifest, checked, unpacked.signed_by, moved_to, unrecorded)


def _check_place(paths: Paths, *, replace: bool) -> None:
    """Raise BackupRefused when a hub runs on the folder, or files are there that must not be lost."""
    if _is_in_use(paths):
        raise BackupRefused(
            f"A hub runs on {paths.data_dir}, or another program has its databases open. Stop it first."
        )
    there = [part.path(paths) for part in PARTS if part.path(paths).exists()]
    if there and not replace:
        raise BackupRefused(
            f"{there[0]} is there already. --replace moves what is there to {paths.data_dir}/before-restore-…, or name "
            "an empty --data-dir."
        )
    for part in PARTS:
        path = part.path(paths)
        if part.kind is PartKind.DATABASE and path.exists():
            with suppress(sqlite3.Error):  # it is damaged, which is why it is to be replaced
                if layout_at(path) > LAYOUTS[part.name]:
                    raise BackupRefused(
                        f"{path} was written by a later version of tool-hub. Restore with that one, or move it away."
                    )


def _is_in_use(paths: Paths) -> bool:
    if RunnerLocks(paths.data_dir / "runners").are_held():
        return True
    return any(part.kind is PartKind.DATABASE and is_open_elsewhere(part.path(paths)) for part in PARTS)


def _check_settings(settings: Settings, manifest: Manifest) -> None:
    """Raise BackupRefused when a part is a file in the backup and elsewhere by the settings, or the reverse:

    a hub would start without the restored data, or not at all.
    """
    advice = "Restore with the settings that the backup was made with."
    for name in (AUDIT, HUB, MEMORY, ARTIFACTS):
        here, there = elsewhere(name, settings), manifest.left_out.get(name, "")
        if name in manifest.parts and here:
            raise BackupRefused(f"The backup has {name}, which with these settings lies {here.split(':')[0]}. {advice}")
        if there.startswith("in ") and not here:
            raise BackupRefused(f"The backup lacks {name}, which lay {there.split(':')[0]}. {advice}")


def _place_all(draft: Path, manifest: Manifest, paths: Paths) -> Path | None:
    """Move all parts into place in the order of `PARTS`. Raises OSError."""
    aside = paths.data_dir / time.strftime("before-restore-%Y%m%dT%H%M%SZ", time.gmtime())
    moved = False
    for part in PARTS:
        path = part.path(paths)
        if part.name not in manifest.parts and part.kind is not PartKind.DATABASE:
            continue  # parts that the backup left out stay
        beside = [path.with_name(path.name + end) for end in ("-wal", "-shm")] if part.kind is PartKind.DATABASE else []
        for old in (path, *beside):
            if old.exists() or old.is_symlink():
                aside.mkdir(mode=0o700, exist_ok=True)
                shutil.move(old, aside / (part.name + old.name.removeprefix(path.name)))
                moved = True
    for part in PARTS:
        source, path = draft / part.name, part.path(paths)
        if source.exists():
            make_folder(path.parent)
            shutil.move(source, path)
            sync_folder(path.parent)
    return aside if moved else None


async def _record(settings: Settings, facts: dict[str, str]) -> str:
    """Record in the audit log what was restored, from when, and who had signed it; return why that failed, or
    nothing."""
    if not Paths(settings).audit_key.exists():
        return f"{AUDIT_KEY} is not there yet"
    clock = SystemClock()
    try:
        log = audit_log_of(
            settings, clock=clock, redactor=Redactor(known_secrets(settings, os.environ)), name="restore"
        )
        await log.start()
        try:
            await log.append_durably(Event(EventType.CONFIG_LOADED, clock.unix_ms(), outcome="ok", attributes=facts))
        finally:
            await log.close()
    except HubFailure as refused:
        return refused.message
    except ToolFailure as refused:
        return refused.error.message
    return ""
