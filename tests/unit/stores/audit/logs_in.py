"""Audit logs in a temporary folder, and processes that are killed while they write to one, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from toolhub_service.domain.event import Verification
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.verify import verify_log

ROOT = Path(__file__).parents[4]


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


def start_victim(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that writes to a log, and prints the sequence of each event once it is durable."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "service")])},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(victim: subprocess.Popen[str], lines: int) -> int:
    """Kill it once it has promised so often that events are durable; the last sequence it promised."""
    assert victim.stdout is not None
    promised = [int(victim.stdout.readline()) for _ in range(lines)]
    victim.send_signal(signal.SIGKILL)
    promised += [int(line) for line in victim.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    victim.wait()
    victim.stdout.close()
    return promised[-1]
