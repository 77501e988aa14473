"""What a backup of a data folder is made of, and the manifest that says so.

A backup is a folder, or a tar file of the same: each part under the name that it has in a data folder wherever the
settings put it, and before all of them `manifest.json`, with size and SHA-256 of every file, and `manifest.sig`, which
says who made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from toolhub_service.app.paths import Paths
from toolhub_service.settings.document import Settings
from toolhub_service.stores.sqlite_items import MIGRATIONS as ITEM_MIGRATIONS
from toolhub_service.stores.sqlite_migrations import MIGRATIONS

FORMAT: Final = 2
"""1: not signed, and in a tar the manifest last."""
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
MANIFEST_MAX_BYTES: Final = 256 * 1024 * 1024
"""Of about a million files."""
DAMAGED: Final = "The backup is damaged: take another one."
HUB, MEMORY, AUDIT = "hub.db", "memory.db", "audit.db"
CHECKPOINTS, AUDIT_KEY, ARTIFACTS = "audit-checkpoints.jsonl", "audit.key", "artifacts"
WORKSPACES: Final = "workspaces"
LAYOUTS: Final = {HUB: len(MIGRATIONS), MEMORY: len(ITEM_MIGRATIONS), AUDIT: 0}
"""By database, the newest version of its layout that this version can read."""
NO_PART: Final = frozenset({"runners", "toolhub.yaml", "audit-export.json", "backup.key", "backup.pub"})
"""Of a data folder: locks of processes, a configuration that `--config` names, how far the log has been carried, for a
log that is restored is not the one that was, and the key that signs backups: in one, it would sign the next forgery."""


class BackupRefused(Exception):
    """What was asked for cannot be done; the message says why and what to do."""


class PartKind(Enum):
    DATABASE = "database"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    kind: PartKind
    path: Callable[[Paths], Path]
    """Where the settings put it."""
    is_secret: bool = False
    """Whether it opens or forges what else is in the backup, or upstreams."""
    is_yours: bool = False
    """Written by people: outside of the data folder it is theirs to keep, too."""


# The audit log's database comes last: until it is there, no hub starts on a data folder that is restored in part.
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
    """Relative, with `/`."""
    size_bytes: int = 0
    sha256: str = ""
    """64 hex digits; empty for a link."""
    is_executable: bool = False
    link: str = ""
    """Where a symbolic link points; empty for a file."""


class Manifest(msgspec.Struct, frozen=True):
    """What later versions add is passed over; what they change has another `format`."""

    format: int
    version: str
    """Of the hub's package that made it."""
    made_at_unix_ms: int
    """The moment that it shows."""
    layouts: dict[str, int]
    """By database, the version of its layout."""
    parts: list[str]
    left_out: dict[str, str]
    """What is not in it, and why."""
    events: int
    """Of the audit log."""
    artifacts: int
    entries: list[Entry]


def elsewhere(name: str, settings: Settings) -> str:
    """Why a part does not lie in the data folder; empty where it does."""
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
    """With all above it that are missing, for their owner only. Raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def size_bytes(manifest: Manifest) -> int:
    return sum(entry.size_bytes for entry in manifest.entries)
