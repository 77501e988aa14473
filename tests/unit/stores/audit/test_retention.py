"""Pruning that is cut off between its checkpoint and the removal, as by a kill. At befa727 this read as tampering."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import WallClock, files_in, started_log, verified
from toolhub_service.stores.audit.checkpoint import CheckpointFile
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.retention import prune
from toolhub_service.stores.audit.sqlite import SqliteEvents


class KilledBeforeRemoval:
    """A table whose rows cannot be removed; everything else is the real one's."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def remove(self, writer: str, count: int) -> int:
        raise OSError("killed")


class KilledEvents(SqliteEvents):
    def open(self, *, create: bool) -> Any:
        return KilledBeforeRemoval(super().open(create=create))


async def test_a_checkpoint_is_written_while_no_other_process_can_write_one(tmp_path: Path) -> None:
    await (await started_log(tmp_path)).close()
    _, checkpoints, key = files_in(tmp_path)
    refused: list[bool] = []

    def unix_ms() -> int:
        """Asked for once the last line has been read."""
        with checkpoints.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(True)
        return 1

    file = CheckpointFile(checkpoints, open_keyring(key, create=False), unix_ms)
    file.append("periodic", "writer", 1, "0" * 64)
    assert refused == [True]


async def test_a_checkpoint_that_was_written_in_part_fails_and_the_next_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await started_log(tmp_path)).close()
    _, checkpoints, key = files_in(tmp_path)
    file = CheckpointFile(checkpoints, open_keyring(key, create=False), WallClock().unix_ms)
    write, before = os.write, checkpoints.read_bytes()
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="in part"):
        file.append("periodic", "writer", 1, "0" * 64)
    assert len(checkpoints.read_bytes()) == len(before) + 20
    monkeypatch.undo()
    signed = file.append("periodic", "writer", 1, "0" * 64)
    assert checkpoints.read_bytes() == before + signed.line().encode() + b"\n"


async def test_a_prune_that_was_cut_off_is_no_tampering_and_can_be_finished(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    for number in range(1, 9):
        await log.append_durably(called(number))
    await log.close()
    database, checkpoints, key = files_in(tmp_path)
    file = CheckpointFile(checkpoints, open_keyring(key, create=False), WallClock().unix_ms)
    with pytest.raises(OSError, match="killed"):
        prune(KilledEvents(database), file, 6)
    half = verified(tmp_path)
    assert (half.faults, half.events_checked) == ((), 8)
    assert prune(SqliteEvents(database), file, 6) == 5
    whole = verified(tmp_path)
    assert (whole.faults, whole.events_checked) == ((), 3)
