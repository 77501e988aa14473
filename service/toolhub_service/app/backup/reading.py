"""Reads a backup: unpacks it into a private folder, and compares it with its manifest.

A backup may be malicious. Manifest and signature come first, and nothing else is read before they are trusted; then
each file must have the signed name and size, and their sum must fit on the disk. An unsigned backup is accepted on
request only, and bounded by the free space, by its own size and in number. Names are those of parts and stay beneath
the folder; a tar may hold only files with short headers, and the manifest's links are made after all files and only
within folders of parts.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import stat
import tarfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from toolhub_service import __version__
from toolhub_service.app.backup.parts import (
    ARTIFACTS,
    DAMAGED,
    FORMAT,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    PARTS,
    SIGNATURE,
    BackupRefused,
    Entry,
    Manifest,
    PartKind,
    make_folder,
)
from toolhub_service.app.backup.signing import SIGNATURE_MAX_BYTES, Trust, signer_of

_CHUNK_BYTES: Final = 1024 * 1024
_NAME_MAX_CHARS: Final = 4_096
_HEADER_MAX_BYTES: Final = 64 * 1024
"""Limit of a tar's extended header, which tarfile reads into memory."""
# Expansion limit for unsigned backups: SQLite and JSON pack to a tenth, zeros to a thousandth.
_UNSIGNED_MAX_FILES: Final = 1_000_000
_UNSIGNED_MAX_RATIO: Final = 100
_UNSIGNED_SPARED_BYTES: Final = 64 * 1024 * 1024
_FOLDERS: Final = tuple(f"{part.name}/" for part in PARTS if part.kind is PartKind.FOLDER)
_FILES: Final = frozenset(part.name for part in PARTS if part.kind is not PartKind.FOLDER)
_LINKED: Final = tuple(f"{part.name}/" for part in PARTS if part.name in ("skills", "workspaces"))
_GZIP: Final = b"\x1f\x8b"
_NO_MANIFEST: Final = f"The backup has no {MANIFEST}: it was cut, or `toolhub backup` has not made it."


class _File(NamedTuple):
    name: str
    size_bytes: int
    content: IO[bytes]


@dataclass(frozen=True, slots=True)
class Unpacked:
    manifest: Manifest
    signed_by: str
    """The trusted public key that has signed it; empty when none has."""


def unpack(backup: Path, folder: Path, trust: Trust) -> Unpacked:
    """Unpack the backup, a folder or a tar file, into `folder`, which is empty. Raises BackupRefused."""
    try:
        if backup.is_dir():
            unpacked = _Unpacking(folder, trust, None).take(_files_of_folder(backup))
        else:
            with backup.open("rb") as packed:
                size_bytes = os.fstat(packed.fileno()).st_size
                unpacked = _Unpacking(folder, trust, size_bytes).take(_files_of_tar(backup, packed))
        for entry in unpacked.manifest.entries:
            place = folder / entry.name
            if entry.link:
                make_folder(place.parent)
                place.symlink_to(entry.link)
            elif entry.is_executable:
                place.chmod(0o700)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as broken:
        raise BackupRefused(f"{backup} is no backup, or was cut: {broken}") from broken
    except OSError as unreadable:
        raise BackupRefused(f"{unreadable.filename or backup}: {unreadable.strerror or unreadable}") from unreadable
    return unpacked


class _Unpacking:
    def __init__(self, folder: Path, trust: Trust, packed_bytes: int | None) -> None:
        """`packed_bytes`: size of the tar file; None for a folder."""
        self._folder = folder
        self._trust = trust
        self._free_bytes = shutil.disk_usage(folder).free
        self._left_bytes = self._free_bytes
        self._left_files = _UNSIGNED_MAX_FILES
        if packed_bytes is not None:
            most_bytes = _UNSIGNED_SPARED_BYTES + packed_bytes * _UNSIGNED_MAX_RATIO
            self._left_bytes = min(most_bytes, self._left_bytes)

    def take(self, files: Iterator[_File]) -> Unpacked:
        """Copy the files below the folder. Raises BackupRefused, and what reading raises."""
        first = next(files, None)
        if first is None:
            raise BackupRefused(_NO_MANIFEST)
        manifest: bytes | None = None
        signature: bytes | None = None
        if first.name == MANIFEST:
            manifest, first = _whole(first, MANIFEST_MAX_BYTES), next(files, None)
        if first is not None and first.name == SIGNATURE and manifest is not None:
            signature, first = _whole(first, SIGNATURE_MAX_BYTES), next(files, None)
        signed_by = signer_of(manifest or b"", signature, self._trust)
        signed = _manifest(manifest or b"") if signed_by else None
        expected = self._expected_sizes(signed) if signed else None
        measured: dict[str, tuple[int, str]] = {}
        while first is not None:
            if first.name == MANIFEST and manifest is None:  # older unsigned backups have it at their end
                manifest = _whole(first, MANIFEST_MAX_BYTES)
            else:
                measured[first.name] = self._copy_file(first, expected)
            first = next(files, None)
        if manifest is None:
            raise BackupRefused(_NO_MANIFEST)
        found = signed or _manifest(manifest)
        _compare(found, measured)
        return Unpacked(found, signed_by)

    def _expected_sizes(self, manifest: Manifest) -> dict[str, int]:
        sizes = {entry.name: entry.size_bytes for entry in manifest.entries if not entry.link}
        if (needed := sum(sizes.values())) > self._free_bytes:
            free = f"{self._free_bytes / 1e6:,.0f} MB"
            raise BackupRefused(
                f"The backup needs {needed / 1e6:,.0f} MB in {self._folder.parent}, where {free} are free."
            )
        return sizes

    def _copy_file(self, file: _File, expected: dict[str, int] | None) -> tuple[int, str]:
        """Copy the file; return its size and SHA-256."""
        _check_name(file.name)
        if expected is None:
            self._left_files -= 1
            self._left_bytes -= file.size_bytes
            if self._left_files < 0 or self._left_bytes < 0:
                raise BackupRefused(
                    "The backup is not signed, and would unpack to more than fits its size or the disk. Unpack it with "
                    "tar, look at what is in it, and restore that folder."
                )
        elif file.name not in expected:
            raise BackupRefused(f"{file.name} is not in the manifest. {DAMAGED}")
        elif file.size_bytes != expected[file.name]:
            raise BackupRefused(f"{file.name} is not what the manifest says (size or SHA-256). {DAMAGED}")
        place = self._folder / file.name
        make_folder(place.parent)
        digest, left_bytes = hashlib.sha256(), file.size_bytes
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            while left_bytes and (chunk := file.content.read(min(_CHUNK_BYTES, left_bytes))):
                digest.update(chunk)
                left_bytes -= len(chunk)
                copy.write(chunk)
        return file.size_bytes - left_bytes, digest.hexdigest()


def _whole(file: _File, max_bytes: int) -> bytes:
    if file.size_bytes > max_bytes:
        raise BackupRefused(f"The {file.name} is too large. {DAMAGED}")
    return file.content.read(file.size_bytes)


def _files_of_folder(backup: Path) -> Iterator[_File]:
    if not (backup / MANIFEST).is_file():
        raise BackupRefused(_NO_MANIFEST)
    yield from _open_file(backup / MANIFEST, MANIFEST)
    if (backup / SIGNATURE).exists():
        yield from _open_file(backup / SIGNATURE, SIGNATURE)
    for place, folders, names in os.walk(backup):
        links = [name for name in folders if Path(place, name).is_symlink()]
        for path in (Path(place, name) for name in [*names, *links]):
            name = path.relative_to(backup).as_posix()
            if name not in (MANIFEST, SIGNATURE):
                yield from _open_file(path, name)


def _open_file(path: Path, name: str) -> Iterator[_File]:
    """Open the file; refuse links, and pipes or devices, which could block."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise BackupRefused(f"{path} is no file. {DAMAGED}")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        yield _File(name, os.fstat(descriptor).st_size, file)


class _Member(tarfile.TarInfo):
    """A header that names a file, or the extended header of the next file; anything else ends reading before its
    content."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        is_extended = member.type == tarfile.XHDTYPE
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE):
            raise BackupRefused(f"The backup holds {member.name!r}, which is no file. {DAMAGED}")
        if is_extended and member.size > _HEADER_MAX_BYTES:
            raise BackupRefused(f"The backup has a header of {member.size} bytes. {DAMAGED}")
        return member


def _files_of_tar(backup: Path, packed: IO[bytes]) -> Iterator[_File]:
    begins = packed.read(len(_GZIP))
    packed.seek(0)
    plain: Any = gzip.GzipFile(fileobj=packed) if begins == _GZIP else packed
    with tarfile.open(fileobj=plain, mode="r|", bufsize=_CHUNK_BYTES, tarinfo=_Member) as archive:
        for member in archive:  # read once, from its start
            is_plain = member.isreg() and not member.issparse() and member.size >= 0
            content = archive.extractfile(member) if is_plain else None
            if content is None:
                raise BackupRefused(f"{backup} holds {member.name!r}, which is no file. {DAMAGED}")
            yield _File(member.name, member.size, content)


def _check_name(name: str) -> None:
    """Raise BackupRefused for a name that no part can have."""
    parts = name.split("/")
    fits = (name in _FILES or name.startswith(_FOLDERS)) and len(name) <= _NAME_MAX_CHARS
    if not fits or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BackupRefused(f"The backup holds {name[:200]!r}, which is no name of a part. {DAMAGED}")


def _manifest(data: bytes) -> Manifest:
    try:
        _check_version(msgspec.json.decode(data, type=_Made))
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise BackupRefused(f"The {MANIFEST} cannot be read: {broken}. {DAMAGED}") from broken


class _Made(msgspec.Struct):
    """The manifest fields of every format."""

    format: int
    version: str


def _check_version(made: _Made) -> None:
    if made.format > FORMAT or _number(made.version) > _number(__version__):
        raise BackupRefused(
            f"The backup was made by tool-hub {made.version}, and this is {__version__}: install that version or "
            "a later one, and restore with it."
        )


def _number(version: str) -> tuple[int, ...]:
    """Return the number of `1.20.3`, or of a version that begins so."""
    return tuple(int(digits[:9]) for digits in re.match(r"[0-9.]*", version)[0].split(".") if digits)  # type: ignore[index]


def _compare(manifest: Manifest, measured: dict[str, tuple[int, str]]) -> None:
    """Raise BackupRefused when the files are not those of the manifest."""
    files = {entry.name: entry for entry in manifest.entries if not entry.link}
    for name, entry in files.items():
        if name not in measured:
            raise BackupRefused(f"{name} is missing. {DAMAGED}")
        is_kept = not name.startswith(f"{ARTIFACTS}/") or name.replace("/", "") == f"{ARTIFACTS}{entry.sha256}"
        if measured[name] != (entry.size_bytes, entry.sha256) or not is_kept:
            raise BackupRefused(f"{name} is not what the manifest says (size or SHA-256). {DAMAGED}")
    if odd := sorted(measured.keys() - files.keys()):
        raise BackupRefused(f"{odd[0]} is not in the manifest. {DAMAGED}")
    _check_links([entry for entry in manifest.entries if entry.link], [entry.name for entry in manifest.entries])


def _check_links(links: list[Entry], names: list[str]) -> None:
    """Raise BackupRefused for a link through which another entry would be written, or in a place where none is
    allowed."""
    names = sorted(names)
    for entry in links:
        _check_name(entry.name)
        place = bisect_left(names, entry.name)
        is_twice = names[place + 1 : place + 2] == [entry.name]
        beneath = f"{entry.name}/"
        below = bisect_left(names, beneath)
        is_way = below < len(names) and names[below].startswith(beneath)
        if is_twice or is_way or not entry.name.startswith(_LINKED) or "\0" in entry.link:
            raise BackupRefused(f"{entry.name[:200]} is a link where none can be. {DAMAGED}")
