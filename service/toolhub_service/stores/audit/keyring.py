"""The keys that seal the audit log: 32 random bytes each, in one file that only the hub may read.

A line is `<key id> <hex>`; the last line signs, the others verify what they once signed. A key id is the beginning of
the key's own SHA-256, so that a mixed-up file is noticed. Two keys are derived from each (HMAC as a PRF, RFC 5869),
one for the chain and one for checkpoints: a checkpoint can never pass for an event.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason

KEY_BYTES: Final = 32
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class Mac:
    """HMAC-SHA256 (RFC 2104) with the key's two blocks hashed once, which halves the cost of a short message."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def hex(self, message: bytes) -> str:
        """The tag, 64 hex digits."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()

    def fits(self, message: bytes, tag: str) -> bool:
        """Whether the tag belongs to the message; compared in constant time."""
        return hmac.compare_digest(self.hex(message).encode(), tag.encode("utf-8", "replace"))


class Keyring:
    """Keys by id, the last one active. Immutable: `rotate` returns a new one."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise HubFailure(StartReason.AUDIT_KEY_INVALID, "The audit key file holds no key.")
        self.active_id = key_id(keys[-1])
        self._chain = {key_id(key): Mac(_derive_key(key, b"toolhub audit chain 1")) for key in keys}
        self._checkpoint = {key_id(key): Mac(_derive_key(key, b"toolhub audit checkpoint 1")) for key in keys}

    def chain(self, of: str = "") -> Mac | None:
        """Return the MAC that seals events, of the active key when `key_id` is None; None when the key is unknown."""
        return self._chain.get(of or self.active_id)

    def checkpoint(self, of: str = "") -> Mac | None:
        """The MAC that seals checkpoints."""
        return self._checkpoint.get(of or self.active_id)


def key_id(key: bytes) -> str:
    return hashlib.sha256(b"toolhub audit key id" + key).hexdigest()[:12]


def _derive_key(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, purpose, "sha256")


def open_keyring(path: Path, *, create: bool) -> Keyring:
    """Read the key file; on first use, and only when `create`, make it.

    Raises HubFailure AUDIT_KEY_MISSING, AUDIT_KEY_EXPOSED (others may read it) or AUDIT_KEY_INVALID.
    """
    if not path.exists():
        if not create:
            message = (
                f"The audit key {path} is missing, yet events exist that it sealed. Put it back, or move them away."
            )
            raise HubFailure(StartReason.AUDIT_KEY_MISSING, message)
        _write_keys(path, [secrets.token_bytes(KEY_BYTES)], replace=False)
    return Keyring(_read_keys(path))


def rotate(path: Path) -> Keyring:
    """Add a key, which signs from now on; the old ones stay to verify what they signed."""
    _write_keys(path, [*_read_keys(path), secrets.token_bytes(KEY_BYTES)], replace=True)
    return Keyring(_read_keys(path))


def _read_keys(path: Path) -> list[bytes]:
    if path.stat().st_mode & 0o077:
        message = (
            f"The audit key {path} can be read by others. Set its mode to 600, then run `toolhub audit rotate-key`."
        )
        raise HubFailure(StartReason.AUDIT_KEY_EXPOSED, message)
    keys: list[bytes] = []
    for line in path.read_text("ascii", "replace").splitlines():
        name, _, digits = line.partition(" ")
        try:
            key = bytes.fromhex(digits)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES or name != key_id(key):
            message = f"The audit key file {path} is damaged: each line must be `<key id> <64 hex digits>`."
            raise HubFailure(StartReason.AUDIT_KEY_INVALID, message)
        keys.append(key)
    return keys


def _write_keys(path: Path, keys: Sequence[bytes], *, replace: bool) -> None:
    """Write the file whole or not at all; when several workers make the first key at once, one of them wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.writelines(f"{key_id(key)} {key.hex()}\n" for key in keys)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(name).replace(path)
        else:
            with suppress(FileExistsError):  # another worker was first: use its key
                os.link(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new or renamed entry of the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
