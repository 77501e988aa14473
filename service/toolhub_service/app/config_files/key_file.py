"""The file of API keys, and beside it when each was used last.

The file is read and changed as a whole, by one command at a time, and replaced atomically. Unknown content is refused,
so that no key is given more rights than it has: older hubs also refuse what newer ones have added.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from toolhub_service.app.config_files.editing import Stamp, lock_for_edit, replace_text, stamp_of
from toolhub_service.domain.call import Role
from toolhub_service.identity.api_keys import KEY_PREFIX, StoredKey
from toolhub_service.settings.auth_section import RoleName

_MODE: Final = 0o600
_USES_MAX_BYTES: Final = 4 * 1024 * 1024


class KeyFileInvalid(ValueError):
    """The file is not a list of keys; the message says where."""


class RotationRefused(ValueError):
    """It is ambiguous which key is to be replaced, or it was replaced already; the message names the keys."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    sha256: str
    created: datetime | None = None
    expires: datetime | None = None
    roles: tuple[RoleName, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    tenant: str = ""
    replaced_by: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The properties of a new key; as in `StoredKey`."""

    expires_s: int | None = None
    roles: frozenset[Role] | None = None
    capabilities: frozenset[str] | None = None
    tenant: str = ""


class Rotated(NamedTuple):
    key: str
    """The whole text of the new key, shown only now."""
    old_id: str
    name: str


class KeyFile:
    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._stamp: Stamp | str = "never read"

    def has_changed(self) -> bool:
        """Return whether the file differs from the one read last, or could not be read then."""
        return self._stamp != stamp_of(self._path)

    def read(self) -> dict[str, StoredKey]:
        """Return the stored keys by id; empty when there is no file. Raises KeyFileInvalid and OSError."""
        # Taken before reading: a change in between is seen at the next check.
        stamp, self._stamp = stamp_of(self._path), "not read"
        keys = self._parse_file()
        self._stamp = stamp
        return keys

    def _parse_file(self) -> dict[str, StoredKey]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            entries = msgspec.convert(yaml.safe_load(text) or {}, dict[str, _Entry])
        except (yaml.YAMLError, ValueError) as broken:
            raise KeyFileInvalid(
                f"{self._path}: not a file of API keys. Repair or restore it; without it keys must be made anew, with "
                "`toolhub keys create`."
            ) from broken
        return {key_id: _to_stored_key(entry) for key_id, entry in entries.items()}

    def create(self, name: str, wanted: Wanted = Wanted()) -> str:
        """Make a key for the principal `name` and return its whole text, shown only now.

        Raises OSError and KeyFileInvalid; then there is no such key.
        """
        with lock_for_edit(self._path):
            keys = self.read()
            key = self._add(keys, name, wanted)
            self._write(keys)
        return key

    def rotate(self, target: str, overlap_s: float, expires_s: int | None = None) -> Rotated | None:
        """Make a new key to replace one, which stays valid for `overlap_s`; return None when there is none.

        `target`: a key's ID, or a principal with one key that was not replaced yet. The new key has the rights and,
        unless `expires_s` is given, the lifetime of the old one. Raises RotationRefused, OSError and KeyFileInvalid.
        """
        now_s = self._now_s()
        with lock_for_edit(self._path):
            keys = self.read()
            old_id = _key_id_of(keys, target, now_s)
            if old_id is None:
                return None
            old = keys[old_id]
            if old.replaced_by:
                raise RotationRefused(f"{old_id} was replaced by {old.replaced_by}: rotate that one.")
            if expires_s is None and old.expires_s is not None:
                # The lifetime of the old one, from now on.
                expires_s = int(now_s) + old.expires_s - (old.created_s or int(now_s))
            key = self._add(keys, old.name, Wanted(expires_s, old.roles, old.capabilities, old.tenant))
            # The overlap must not extend the old key's life.
            until_s = int(now_s + overlap_s) if old.expires_s is None else min(int(now_s + overlap_s), old.expires_s)
            keys[old_id] = msgspec.structs.replace(old, expires_s=until_s, replaced_by=next(reversed(keys)))
            self._write(keys)
        return Rotated(key, old_id, old.name)

    def revoke(self, target: str) -> bool:
        """Return whether there was a key with this ID. Raises OSError and KeyFileInvalid; then it still works."""
        return bool(self.revoke_all((target,)))

    def revoke_all(self, key_ids: Collection[str]) -> list[str]:
        """Revoke all keys at once and return them. Raises OSError and KeyFileInvalid; then all still work."""
        with lock_for_edit(self._path):
            keys = self.read()
            gone = [key_id for key_id in key_ids if keys.pop(key_id, None) is not None]
            if gone:
                self._write(keys)
            return gone

    def _add(self, keys: dict[str, StoredKey], name: str, wanted: Wanted) -> str:
        """Append a key and return its text."""
        key_id = f"{KEY_PREFIX}{secrets.token_hex(4)}"
        # 32 random bits are few enough to collide in a large file.
        while key_id in keys:
            key_id = f"{KEY_PREFIX}{secrets.token_hex(4)}"
        key = f"{key_id}_{secrets.token_urlsafe(32)}"
        digest, created_s = hashlib.sha256(key.encode()).hexdigest(), int(self._now_s())
        keys[key_id] = StoredKey(
            name=name,
            sha256=digest,
            created_s=created_s,
            expires_s=wanted.expires_s,
            roles=wanted.roles,
            capabilities=wanted.capabilities,
            tenant=wanted.tenant,
        )
        return key

    def _write(self, keys: Mapping[str, StoredKey]) -> None:
        data = {key_id: msgspec.to_builtins(_entry(stored)) for key_id, stored in sorted(keys.items())}
        replace_text(self._path, yaml.safe_dump(data, sort_keys=False), mode=_MODE)


def _key_id_of(keys: Mapping[str, StoredKey], target: str, now_s: float) -> str | None:
    if target in keys:
        return target
    current = [key_id for key_id, key in keys.items() if key.name == target and not key.replaced_by]
    # A name is unambiguous when only one of its keys is still valid.
    holding = [key_id for key_id in current if not keys[key_id].has_expired(now_s)] or current
    if len(holding) > 1:
        raise RotationRefused(f"{target!r} has {len(holding)} keys: {', '.join(holding)}. Name one of them.")
    return holding[0] if holding else None


def _to_stored_key(entry: _Entry) -> StoredKey:
    return StoredKey(
        name=entry.name,
        sha256=entry.sha256,
        created_s=_unix_s(entry.created),
        expires_s=_unix_s(entry.expires),
        roles=None if entry.roles is None else frozenset(map(Role, entry.roles)),
        capabilities=None if entry.capabilities is None else frozenset(entry.capabilities),
        tenant=entry.tenant,
        replaced_by=entry.replaced_by,
    )


def _entry(key: StoredKey) -> _Entry:
    roles: Any = None if key.roles is None else tuple(sorted(role.value for role in key.roles))
    return _Entry(
        name=key.name,
        sha256=key.sha256,
        created=_moment(key.created_s),
        expires=_moment(key.expires_s),
        roles=roles,
        capabilities=None if key.capabilities is None else tuple(sorted(key.capabilities)),
        tenant=key.tenant,
        replaced_by=key.replaced_by,
    )


def _unix_s(moment: datetime | None) -> int | None:
    """Return Unix seconds; without a time zone UTC is assumed."""
    if moment is None:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _moment(unix_s: int | None) -> datetime | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC)


class KeyUses:
    """The last use of each key, as known to the hubs of a data folder: Unix seconds by ID, JSON.

    It is informative only: an unreadable file counts as no use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, int]:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_USES_MAX_BYTES), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            return {}

    def add(self, used: Mapping[str, int], known: Collection[str]) -> None:
        """Keep the later moment of each key, and drop keys that are gone. Raises OSError."""
        with lock_for_edit(self._path):
            kept = self.read()
            ids = sorted({*kept, *used}.intersection(known))
            uses = {key_id: max(kept.get(key_id, 0), used.get(key_id, 0)) for key_id in ids}
            replace_text(self._path, json.dumps(uses, indent=0) + "\n", mode=_MODE)
