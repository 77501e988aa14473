"""Takes a backup while hubs go on: writers wait only during the snapshot, for some milliseconds.

At that moment nobody appends a checkpoint, commits to a database or removes bytes of artifacts. Snapshots of all
databases begin, the lines of the checkpoint file are read, and the bytes of all artifacts that the records name get a
second name (a hard link), so that removing the first name does not remove them. Everything else is copied afterwards,
and the manifest is signed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from toolhub_service import __version__
from toolhub_service.app.backup.checking import Checked, check
from toolhub_service.app.backup.parts import (
    ARTIFACTS,
    AUDIT,
    CHECKPOINTS,
    FORMAT,
    HUB,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    NO_PART,
    PARTS,
    SIGNATURE,
    WORKSPACES,
    BackupRefused,
    Entry,
    Manifest,
    Part,
    PartKind,
    elsewhere,
    make_folder,
)
from toolhub_service.app.backup.signing import sign
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.checkpoint import frozen_lines
from toolhub_service.stores.audit.keyring import sync_folder
from toolhub_service.stores.blobs.disk import pause_removals
from toolhub_service.stores.sqlite.cut import copy_to, cut, layout_of

_CHUNK_BYTES: Final = 1024 * 1024
_TARS: Final = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_OTHER_ARCHIVES: Final = frozenset(
    {".zip", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".7z", ".rar", ".tbz2", ".txz", ".tzst"}
)
"""A target with such a suffix is not meant as a folder."""
_KEPT_LINKS: Final = ".backup"


@dataclass(frozen=True, slots=True)
class Taken:
    manifest: Manifest
    checked: Checked | None
    """The result of reading the copy again; None when that was not asked for."""
    signed_by: str
    """The public key, 64 hex digits."""
    made_key: Path | None
    """The file of the public key, when this backup was the first to be signed with it."""


def take(settings: Settings, target: Path, *, workspaces: bool, with_secrets: bool, verify: bool) -> Taken:
    """Write a backup to `target`: a tar file for a name like .tar, .tar.gz or .tgz, otherwise a folder.

    Raises BackupRefused, and then leaves no `target`.
    """
    paths = Paths(settings)
    mode = _tar_mode(target)
    if target.exists() or target.is_symlink():
        raise BackupRefused(f"{target} is there already. A backup never replaces one: name another place.")
    if not paths.data_dir.is_dir():
        raise BackupRefused(
            f"There is no data folder {paths.data_dir}. --data-dir names the folder that the hub keeps."
        )
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
        had_key = paths.backup_key.exists()
        manifest = _Taking(settings, paths, draft, workspaces=workspaces, with_secrets=with_secrets).everything()
        signed_by = _seal(draft, paths, manifest)
        checked = check(draft, manifest, paths.audit_key) if verify else None
        _publish(draft, target, mode, manifest)
        return Taken(manifest, checked, signed_by, None if had_key else paths.backup_public_key)
    except OSError as failed:
        raise BackupRefused(f"{failed.filename or target}: {failed.strerror or failed}") from failed
    except sqlite3.Error as failed:
        raise BackupRefused(f"A database cannot be copied: {failed}. `toolhub doctor` says what is wrong.") from failed
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _tar_mode(target: Path) -> str | None:
    """Return tarfile's mode; None for a folder. Raises BackupRefused for an unsupported kind of archive."""
    name = target.name.casefold()
    for end, mode in _TARS.items():
        if name.endswith(end):
            return mode
    if target.suffix.casefold() in _OTHER_ARCHIVES:
        raise BackupRefused(
            f"{target.suffix} is not written: name a file that ends in {', '.join(_TARS)}, or a folder. A backup packs "
            "many files, and keeps who may read them."
        )
    return None


def _seal(draft: Path, paths: Paths, manifest: Manifest) -> str:
    """Write manifest and signature; return the public key."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=0) + b"\n"
    if len(data) > MANIFEST_MAX_BYTES:
        raise BackupRefused(f"{len(manifest.entries)} files are more than a backup can hold. Leave out --workspaces.")
    signature, public_key = sign(paths, data)
    for name, content in ((MANIFEST, data), (SIGNATURE, signature)):
        with _new(draft / name) as file:
            file.write(content)
    return public_key


class _Taking:
    def __init__(self, settings: Settings, paths: Paths, draft: Path, *, workspaces: bool, with_secrets: bool) -> None:
        self._paths = paths
        self._draft = draft
        self._left_out: dict[str, str] = {}
        self._entries: list[Entry] = []
        self._layouts: dict[str, int] = {}
        self._events = 0
        self._artifacts = 0
        self._made_at_unix_ms = 0
        self._parts = {part.name: part for part in PARTS if self._is_wanted(part, settings, workspaces, with_secrets)}

    def everything(self) -> Manifest:
        """Copy all parts. Raises OSError, sqlite3.Error and BackupRefused."""
        present = {name: part.path(self._paths) for name, part in self._parts.items()}
        present = {name: path for name, path in present.items() if path.exists()}
        databases = {name: path for name, path in present.items() if self._parts[name].kind is PartKind.DATABASE}
        if not present:
            raise BackupRefused(f"{self._paths.data_dir} is no data folder of a hub: there is nothing to back up.")
        folder = present.pop(ARTIFACTS, None)
        with ExitStack() as held:
            removals = pause_removals(folder) if folder else nullcontext()
            with frozen_lines(present.get(CHECKPOINTS, Path(os.devnull))) as lines, removals:
                snapshots = held.enter_context(cut(databases))
                self._made_at_unix_ms = SystemClock().unix_ms()
                kept = held.enter_context(_hold_blobs(folder, _digests(snapshots.get(HUB)))) if folder else {}
            for name, snapshot in snapshots.items():
                self._copy_database(name, snapshot)
            if CHECKPOINTS in present:
                self._add_bytes(CHECKPOINTS, lines)
            for digest, path in kept.items():
                self._add_file(f"{ARTIFACTS}/{digest[:2]}/{digest[2:]}", path)
        self._artifacts = len(kept)
        for name, path in present.items():
            if self._parts[name].kind is PartKind.FILE and name != CHECKPOINTS:
                self._add_file(name, path)
            elif self._parts[name].kind is PartKind.FOLDER:
                self._add_folder(name, path)
        self._note_the_rest()
        return self._manifest([*present, *([ARTIFACTS] if folder else [])])

    def _manifest(self, present: list[str]) -> Manifest:
        parts = [part.name for part in PARTS if part.name in present]
        entries = sorted(self._entries, key=lambda entry: entry.name)
        facts = (FORMAT, __version__, self._made_at_unix_ms, self._layouts, parts, self._left_out)
        return Manifest(*facts, self._events, self._artifacts, entries)

    def _is_wanted(self, part: Part, settings: Settings, workspaces: bool, with_secrets: bool) -> bool:
        path = part.path(self._paths)
        reason = elsewhere(part.name, settings)
        if not reason and part.name == WORKSPACES and not workspaces:
            reason = "files of calls under way; --workspaces takes them along"
        if not reason and part.is_secret and not with_secrets:
            reason = "left out by --without-secrets; the hub needs the same one to go on"
        if not reason and part.is_yours and not path.absolute().is_relative_to(self._paths.data_dir.absolute()):
            reason = f"yours to keep: {path}"
        if reason and (path.exists() or reason == elsewhere(part.name, settings)):
            self._left_out[part.name] = reason
        return not reason

    def _note_the_rest(self) -> None:
        """Note the other files of the data folder."""
        known = {part.path(self._paths).absolute() for part in PARTS}
        for path in sorted(self._paths.data_dir.absolute().iterdir()):
            is_of_a_database = path.name.endswith(("-wal", "-shm"))
            if (
                path not in known
                and not is_of_a_database
                and not path.name.startswith(".")
                and path.name not in NO_PART
            ):
                self._left_out[path.name] = "nothing that the hub keeps"

    def _copy_database(self, name: str, snapshot: sqlite3.Connection) -> None:
        copy_to(snapshot, self._draft / name)
        self._layouts[name] = layout_of(snapshot)
        if name == AUDIT and snapshot.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone():
            (self._events,) = snapshot.execute("SELECT count(*) FROM events").fetchone()
        size_bytes, digest = _measure_file(self._draft / name)
        self._entries.append(Entry(name, size_bytes, digest))

    def _add_bytes(self, name: str, data: bytes) -> None:
        with _new(self._draft / name) as file:
            file.write(data)
        self._entries.append(Entry(name, len(data), hashlib.sha256(data).hexdigest()))

    def _add_file(self, name: str, path: Path) -> None:
        """Add a file. Raises OSError."""
        digest, size_bytes = hashlib.sha256(), 0
        with path.open("rb") as source, _new(self._draft / name) as file:
            is_executable = bool(os.fstat(source.fileno()).st_mode & 0o100)
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                file.write(chunk)
        self._entries.append(Entry(name, size_bytes, digest.hexdigest(), is_executable))

    def _add_folder(self, name: str, folder: Path) -> None:
        """Add a folder. Files that vanish meanwhile are skipped, and so is anything that is neither file nor link."""
        for place, folders, names in os.walk(folder):
            for path in (Path(place, each) for each in [*names, *folders]):
                inner = f"{name}/{path.relative_to(folder).as_posix()}"
                with suppress(FileNotFoundError):  # workspaces are in use meanwhile
                    if path.is_symlink():
                        self._entries.append(Entry(inner, link=str(path.readlink())))
                    elif path.is_file():
                        self._add_file(inner, path)


def _digests(snapshot: sqlite3.Connection | None) -> set[str] | None:
    """Return the SHA-256 of all artifacts that the records name; None when the records are elsewhere."""
    if snapshot is None or not snapshot.execute("SELECT 1 FROM sqlite_master WHERE name = 'artifacts'").fetchone():
        return None
    return {digest for (digest,) in snapshot.execute("SELECT DISTINCT sha256 FROM artifacts")}


@contextmanager
def _hold_blobs(folder: Path, digests: set[str] | None) -> Iterator[Mapping[str, Path]]:
    """Yield by digest a private name of the bytes: a hard link beside them, or a copy when links do not work."""
    place = folder / _KEPT_LINKS / secrets.token_hex(8)
    make_folder(place)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held as long as this process lives
        _remove_left_behind(place)
        yield dict(_link_blobs(folder, place, _list_digests(folder) if digests is None else digests))
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(descriptor)


def _link_blobs(folder: Path, place: Path, digests: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for digest in digests:
        stored, path = folder / digest[:2] / digest[2:], place / digest
        try:
            os.link(stored, path)
        except FileNotFoundError:
            continue  # lost before: the hub answers NOT_FOUND, and so will the restored one
        except OSError:
            shutil.copyfile(stored, path)
        yield digest, path


def _remove_left_behind(own: Path) -> None:
    """Remove the links of backups that were killed."""
    for other in own.parent.iterdir():
        if other != own:
            with suppress(OSError):  # a locked one belongs to a running backup
                descriptor = os.open(other, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(other, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _list_digests(folder: Path) -> Iterator[str]:
    for shard in folder.iterdir():
        if len(shard.name) == 2 and shard.is_dir():
            yield from (shard.name + path.name for path in shard.iterdir())


@contextmanager
def _new(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file, for its owner only."""
    make_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file


def _measure_file(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path.stat().st_size, digest


def _publish(draft: Path, target: Path, mode: str | None, manifest: Manifest) -> None:
    """Give the complete backup its name."""
    if mode is None:
        os.sync()  # one sync for all: with thousands of artifacts each would wait for the disk
        draft.rename(target)
    else:
        packed = draft.with_name(draft.name + ".tar")
        try:
            _pack(draft, packed, mode, manifest)
            os.sync()
            os.link(packed, target)  # never over one that another process has made meanwhile
        finally:
            packed.unlink(missing_ok=True)
    sync_folder(target.parent)


def _pack(draft: Path, packed: Path, mode: str, manifest: Manifest) -> None:
    """Write the manifest first, so that a reader of the file knows whether to trust it before reading on."""
    with _new(packed) as file, tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name in [MANIFEST, SIGNATURE, *(entry.name for entry in manifest.entries if not entry.link)]:
            member = archive.gettarinfo(str(draft / name), name)
            member.mtime = int(member.mtime)  # a fraction would need an extended header for each file
            member.mode, member.uid, member.gid, member.uname, member.gname = 0o600, 0, 0, "", ""
            with (draft / name).open("rb") as content:
                archive.addfile(member, content)
            (draft / name).unlink()
