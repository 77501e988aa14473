"""The parts of a backup of a data folder, and its manifest.

A backup is a folder, or a tar file of the same: each part has its name in a data folder, wherever the settings put it.
Before all of them come `manifest.json`, with size and SHA-256 of every file, and `manifest.sig`, which proves who made
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.settings.document import Settings
from toolhub_service.stores.sqlite.items import MIGRATIONS as ITEM_MIGRATIONS
from toolhub_service.stores.sqlite.migrations import MIGRATIONS

FORMAT: Final = 2
"""Format 1 was not signed, and in a tar had the manifest last."""
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
MANIFEST_MAX_BYTES: Final = 256 * 1024 * 1024
"""Enough for about a million files."""
DAMAGED: Final = "The backup is damaged: take another one."
HUB, MEMORY, AUDIT = "hub.db", "memory.db", "audit.db"
CHECKPOINTS, AUDIT_KEY, ARTIFACTS = "audit-checkpoints.jsonl", "audit.key", "artifacts"
WORKSPACES: Final = "workspaces"
LAYOUTS: Final = {HUB: len(MIGRATIONS), MEMORY: len(ITEM_MIGRATIONS), AUDIT: 0}
"""By database: the newest version of its layout that this version can read."""
NO_PART: Final = frozenset({"runners", "toolhub.yaml", "audit-export.json", "backup.key", "backup.pub"})
"""Files of a data folder that are not backed up: locks of processes, a configuration that `--config` names, the export
cursors (a restored log is another one), and the key that signs backups: inside a backup, it could sign forgeries."""


class BackupRefused(Exception):
    """The request cannot be carried out; the message says why and what to do."""


class PartKind(Enum):
    DATABASE = "database"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    kind: PartKind
    path: Callable[[Paths], Path]
    """The path from the settings."""
    is_secret: bool = False
    """Whether the part can decrypt or forge others of the backup, or gives access to upstreams."""
    is_yours: bool = False
    """Edited by people: outside of the data folder, they back it up themselves."""


# The audit log's database comes last: until it is there, no hub starts on a partly restored data folder.
PARTS: Final = (
    Part("policy.yaml", PartKind.FILE, lambda paths: paths.policy, is_yours=True),
    Part("sources.yaml", PartKind.FILE, lambda paths: paths.sources, is_yours=True),
    Part("api-keys.yaml", PartKind.FILE, lambda paths: paths.api_keys, is_yours=True),
    Part("api-keys-used.json", PartKind.FILE, lambda paths: paths.api_key_uses),
    Part("plan.key", PartKind.FILE, lambda paths: paths.plan_key, is_secret=True),
    Part("credentials.key", PartKind.FILE, lambda paths: paths.credentials_key, is_secret=True),
    Part("secrets", PartKind.FOLDER, lambda paths: paths.source_secrets, is_secret=True),
    Part("skills", PartKind.FOLDER, lambda paths: paths.skills),
    Part(WORKSPACES, PartKind.FOLDER, lambda paths: paths.workspaces),
    Part(ARTIFACTS, PartKind.FOLDER, lambda paths: paths.artifacts),
    Part(MEMORY, PartKind.DATABASE, lambda paths: paths.memory),
    Part(HUB, PartKind.DATABASE, lambda paths: paths.stores),
    Part(AUDIT_KEY, PartKind.FILE, lambda paths: paths.audit_key, is_secret=True),
    Part(CHECKPOINTS, PartKind.FILE, lambda paths: paths.audit_checkpoints),
    Part(AUDIT, PartKind.DATABASE, lambda paths: paths.audit),
)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the backup, or a link in one of its folders."""

    name: str
    """A relative path with `/`."""
    size_bytes: int = 0
    sha256: str = ""
    """64 hex digits; empty for a link."""
    is_executable: bool = False
    link: str = ""
    """The target of a symbolic link; empty for a file."""


class Manifest(msgspec.Struct, frozen=True):
    """Additions of later versions are ignored; incompatible changes have another `format`."""

    format: int
    version: str
    """The version of the hub's package that made it."""
    made_at_unix_ms: int
    """The moment of the snapshot."""
    layouts: dict[str, int]
    """By database: the version of its layout."""
    parts: list[str]
    left_out: dict[str, str]
    """What it leaves out, and why."""
    events: int
    """Number of audit events."""
    artifacts: int
    entries: list[Entry]


def elsewhere(name: str, settings: Settings) -> str:
    """Return why a part is not in the data folder; empty when it is."""
    stores = settings.stores
    if name == ARTIFACTS and settings.artifacts.bucket_url:
        return "in the bucket: keep its versions there"
    if name in (AUDIT, HUB, MEMORY) and stores.kind == "postgres":
        return "in PostgreSQL: pg_dump"
    if name == AUDIT and stores.postgres_url:
        return "in PostgreSQL: pg_dump"
    if name == HUB and stores.redis_url:
        return "in Redis: copy its append-only files or RDB" + (", jobs in PostgreSQL" if stores.postgres_url else "")
    if name in (HUB, MEMORY) and stores.kind == "memory":
        return "in memory (stores.kind)"
    return ""


def make_folder(path: Path) -> None:
    """Make the folder and its missing parents, for their owner only. Raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def size_bytes(manifest: Manifest) -> int:
    return sum(entry.size_bytes for entry in manifest.entries)
