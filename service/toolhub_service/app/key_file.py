"""API keys at rest: one YAML file, mode 0600, a name and a sha256 a key. `toolhub keys` writes it, the hub reads it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from toolhub_service.app.file_edit import edited, replace_text
from toolhub_service.transport.authenticators import KEY_PREFIX, StoredKey

_MODE = 0o600


class KeyFileInvalid(ValueError):
    """The file is not a list of keys; the message says where."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sha256: str


class KeyFile:
    """Read and changed as a whole, by one command at a time, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, StoredKey]:
        """Key id to stored key; empty when there is no file. Raises KeyFileInvalid."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            entries = msgspec.convert(yaml.safe_load(text) or {}, dict[str, _Entry])
        except (yaml.YAMLError, msgspec.ValidationError) as broken:
            raise KeyFileInvalid(
                f"{self._path}: not a file of API keys. Repair or restore it; without it keys must be made anew, with "
                "`toolhub keys create`."
            ) from broken
        return {key_id: StoredKey(entry.name, entry.sha256) for key_id, entry in entries.items()}

    def create(self, name: str) -> str:
        """A new key for the principal `name`: the whole key text, shown this once.

        Raises OSError and KeyFileInvalid; then there is no such key.
        """
        key_id = f"{KEY_PREFIX}{secrets.token_hex(4)}"
        key = f"{key_id}_{secrets.token_urlsafe(32)}"
        stored = StoredKey(name, hashlib.sha256(key.encode()).hexdigest())
        with edited(self._path):
            self._write({**self.read(), key_id: stored})
        return key

    def revoke(self, key_id: str) -> bool:
        """Whether there was such a key. Raises OSError and KeyFileInvalid; then it still works."""
        with edited(self._path):
            keys = self.read()
            if keys.pop(key_id, None) is None:
                return False
            self._write(keys)
            return True

    def _write(self, keys: Mapping[str, StoredKey]) -> None:
        data = {key_id: {"name": stored.name, "sha256": stored.sha256} for key_id, stored in sorted(keys.items())}
        replace_text(self._path, yaml.safe_dump(data), mode=_MODE)
