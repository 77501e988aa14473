"""A key of 32 random bytes in a file of mode 0600, made on first use. Replicas that share the file share the key."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_SIZE_BYTES = 32


class SecretFileInvalid(ValueError):
    """The file is not a key; the message says what to do."""


def read_or_make_key(path: Path) -> bytes:
    """The key. Raises OSError when it can neither be read nor made, SecretFileInvalid when the file holds no key."""
    if not path.exists():
        _make(path)
    return _read(path)


def _make(path: Path) -> None:
    """Whole or not at all: of several processes that start together one makes the key and all read that one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE_BYTES).hex().encode())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _SIZE_BYTES:
        raise SecretFileInvalid(f"{path} holds no key of {_SIZE_BYTES} bytes; remove it to have a new one made")
    return key
