"""Audit logs in a temporary folder, for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from toolhub_service.domain.event import Verification
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.chain import open_keyring
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.verify import verify_log


class WallClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return int(time.time() * 1000)


def files_in(folder: Path) -> tuple[Path, Path, Path]:
    """Database, checkpoint file and key file."""
    return folder / "audit.db", folder / "checkpoints" / "audit.jsonl", folder / "keys" / "audit.key"


async def started_log(folder: Path, *, redactor: Redactor | None = None, **options: Any) -> SqliteAuditLog:
    log = unstarted_log(folder, redactor=redactor, **options)
    await log.start()
    return log


def unstarted_log(folder: Path, *, redactor: Redactor | None = None, **options: Any) -> SqliteAuditLog:
    return SqliteAuditLog(*files_in(folder), clock=WallClock(), redactor=redactor or Redactor(), **options)


def verified(folder: Path, **options: Any) -> Verification:
    """What `toolhub audit verify` finds, with no hub running."""
    database, checkpoints, key = files_in(folder)
    return verify_log(database, checkpoints, open_keyring(key, create=False), **options)
