"""A key of 32 random bytes in a file of mode 0600, made on first use. Replicas that share the file share the key."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_SIZE_BYTES = 32


class SecretFileInvalid(ValueError):
    """The file is not a key; the message says what to do."""


def read_or_make_key(path: Path) -> bytes:
    """The key. Raises OSError when it can neither be read nor made, SecretFileInvalid when the file holds no key."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(_SIZE_BYTES)
        file.write(key.hex().encode())
    return key


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _SIZE_BYTES:
        raise SecretFileInvalid(f"{path} holds no key of {_SIZE_BYTES} bytes; remove it to have a new one made")
    return key
