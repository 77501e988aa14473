"""Reading a backup: laid out whole below a folder of one's own, measured against its manifest, looked through.

What it says is not believed: names are those of parts and stay beneath the folder, links are made after all files and
only within folders of parts, every size and SHA-256 is measured, databases are checked by SQLite and by their layout,
the audit log by its chains and checkpoints, artifacts by the records that name them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec

from toolhub_service import __version__
from toolhub_service.app.backup.parts import (
    ARTIFACTS,
    AUDIT,
    AUDIT_KEY,
    CHECKPOINTS,
    FORMAT,
    HUB,
    LAYOUTS,
    MANIFEST,
    PARTS,
    BackupRefused,
    Entry,
    Manifest,
    PartKind,
    make_folder,
)
from toolhub_service.domain.errors import HubFailure
from toolhub_service.stores.audit.chain import open_keyring
from toolhub_service.stores.audit.verify import verify_log
from toolhub_service.stores.sqlite_cut import damage_of, layout_at

_CHUNK_BYTES: Final = 1024 * 1024
_MANIFEST_MAX_BYTES: Final = 512 * 1024 * 1024
_FOLDERS: Final = tuple(f"{part.name}/" for part in PARTS if part.kind is PartKind.FOLDER)
_FILES: Final = frozenset(part.name for part in PARTS if part.kind is not PartKind.FOLDER)
_LINKED: Final = tuple(f"{part.name}/" for part in PARTS if part.name in ("skills", "workspaces"))
_DAMAGED: Final = "The backup is damaged: take another one."


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found to be whole."""

    events: int
    """Of the audit log, whose chains were walked; 0 where they were not."""
    chains: int
    artifacts: int
    """That records name and whose bytes are there."""
    missing_artifacts: int
    """Whose bytes were gone when the backup was made."""
    unverified: str = ""
    """Why the audit log was not verified; empty when it was, or there is none."""


def unpack(backup: Path, folder: Path) -> Manifest:
    """Lay out the backup, a folder or a tar file, below `folder`, which is empty. Raises BackupRefused."""
    try:
        measured = dict(_copied(backup, folder))
        manifest = _manifest(folder / MANIFEST)
    except (tarfile.TarError, EOFError) as broken:
        raise BackupRefused(f"{backup} is no backup, or was cut: {broken}") from broken
    except OSError as unreadable:
        raise BackupRefused(f"{unreadable.filename or backup}: {unreadable.strerror or unreadable}") from unreadable
    measured.pop(MANIFEST, None)
    _compare(manifest, measured)
    for entry in manifest.entries:
        place = folder / entry.name
        if entry.link:
            make_folder(place.parent)
            place.symlink_to(entry.link)
        elif entry.is_executable:
            place.chmod(0o700)
    return manifest


def _copied(backup: Path, folder: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Copy every file; its name, size and SHA-256."""
    for name, source in _files_of(backup):
        _judge_name(name)
        place = folder / name
        make_folder(place.parent)
        digest, size_bytes = hashlib.sha256(), 0
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                file.write(chunk)
        yield name, (size_bytes, digest.hexdigest())


def _files_of(backup: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if backup.is_dir():
        for place, folders, names in os.walk(backup):
            links = [name for name in folders if Path(place, name).is_symlink()]
            for path in (Path(place, name) for name in [*names, *links]):
                if path.is_symlink() or not path.is_file():
                    raise BackupRefused(f"{path} is no file. {_DAMAGED}")
                with path.open("rb") as file:
                    yield path.relative_to(backup).as_posix(), file
        return
    with tarfile.open(backup, "r|*") as archive:  # read once, from its start
        for member in archive:
            source = archive.extractfile(member) if member.isreg() else None
            if source is None:
                raise BackupRefused(f"{backup} holds {member.name!r}, which is no file. {_DAMAGED}")
            yield member.name, source


def _judge_name(name: str) -> None:
    """Raises BackupRefused for a name that no part can have."""
    parts = name.split("/")
    fits = name in _FILES or name == MANIFEST or name.startswith(_FOLDERS)
    if not fits or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BackupRefused(f"The backup holds {name!r}, which is no name of a part. {_DAMAGED}")


def _manifest(path: Path) -> Manifest:
    if not path.is_file():
        raise BackupRefused(f"The backup has no {MANIFEST}: it was cut, or `toolhub backup` has not made it.")
    if path.stat().st_size > _MANIFEST_MAX_BYTES:
        raise BackupRefused(f"The {MANIFEST} is too large. {_DAMAGED}")
    data = path.read_bytes()
    path.unlink()
    try:
        _check_version(msgspec.json.decode(data, type=_Made))
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise BackupRefused(f"The {MANIFEST} cannot be read: {broken}. {_DAMAGED}") from broken


class _Made(msgspec.Struct):
    """What every format says of itself."""

    format: int
    version: str


def _check_version(made: _Made) -> None:
    if made.format > FORMAT or _number(made.version) > _number(__version__):
        raise BackupRefused(
            f"The backup was made by tool-hub {made.version}, and this is {__version__}: install that version or "
            "a later one, and restore with it."
        )


def _number(version: str) -> tuple[int, ...]:
    """Of `1.20.3`, or of what begins so."""
    return tuple(int(digits[:9]) for digits in re.match(r"[0-9.]*", version)[0].split(".") if digits)  # type: ignore[index]


def _compare(manifest: Manifest, measured: dict[str, tuple[int, str]]) -> None:
    """Raises BackupRefused where the files are not those of the manifest."""
    files = {entry.name: entry for entry in manifest.entries if not entry.link}
    for name, entry in files.items():
        if name not in measured:
            raise BackupRefused(f"{name} is missing. {_DAMAGED}")
        is_kept = not name.startswith(f"{ARTIFACTS}/") or name.replace("/", "") == f"{ARTIFACTS}{entry.sha256}"
        if measured[name] != (entry.size_bytes, entry.sha256) or not is_kept:
            raise BackupRefused(f"{name} is not what the manifest says (size or SHA-256). {_DAMAGED}")
    if odd := sorted(measured.keys() - files.keys()):
        raise BackupRefused(f"{odd[0]} is not in the manifest. {_DAMAGED}")
    links = [entry.name for entry in manifest.entries if entry.link]
    folders = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    if len(set(links)) < len(links) or not folders.isdisjoint(links):
        raise BackupRefused(f"The {MANIFEST} has a link where something else is. {_DAMAGED}")
    for entry in manifest.entries:
        if entry.link:
            _judge_link(entry, files, set(links))


def _judge_link(entry: Entry, files: dict[str, Entry], links: set[str]) -> None:
    """Raises BackupRefused for one that another entry would be made through."""
    _judge_name(entry.name)
    is_within = any(parent.as_posix() in links for parent in PurePosixPath(entry.name).parents)
    if not entry.name.startswith(_LINKED) or entry.name in files or is_within or "\0" in entry.link:
        raise BackupRefused(f"{entry.name} is a link where none can be. {_DAMAGED}")


def check(folder: Path, manifest: Manifest, audit_key: Path) -> Checked:
    """Look through what was laid out. `audit_key` is taken where the backup has none. Raises BackupRefused."""
    try:
        for name, layout in {**dict.fromkeys(_databases_in(folder), -1), **manifest.layouts}.items():
            _check_database(folder / name, name, layout)
        found, missing = _check_artifacts(folder)
        events, chains, unverified = _check_audit(folder, audit_key)
    except sqlite3.Error as broken:
        raise BackupRefused(f"A database cannot be read: {broken}. {_DAMAGED}") from broken
    return Checked(events, chains, found, missing, unverified)


def _databases_in(folder: Path) -> list[str]:
    return [name for name in LAYOUTS if (folder / name).is_file()]


def _check_database(path: Path, name: str, layout: int) -> None:
    newest = LAYOUTS.get(name)
    if newest is None or not path.is_file():
        raise BackupRefused(f"The backup lacks {name}, or does not know it. {_DAMAGED}")
    if layout_at(path) != layout:
        raise BackupRefused(f"{name} has another layout than the manifest says. {_DAMAGED}")
    if layout > newest:
        raise BackupRefused(f"{name} was written by a later version of tool-hub: restore it with that one.")
    if damage := damage_of(path):
        raise BackupRefused(f"{name}: {damage}. {_DAMAGED}")


def _check_artifacts(folder: Path) -> tuple[int, int]:
    """How many digests the records name with bytes, and without. Each file's own digest must be its name."""
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
    """A folder of one's own (mode 0700) that is gone at the end. Raises BackupRefused."""
    folder = place / f".{name}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as refused:
        raise BackupRefused(f"{folder}: {refused.strerror}") from refused
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
