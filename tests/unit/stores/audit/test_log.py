"""The audit log's own life: keys, rotation, checkpoints, pruning, export, restarts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sqlite3
import stat
from pathlib import Path

import orjson
import pytest

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.stores.audit.logs_in import files_in, started_log, verified
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.event import Event
from toolhub_service.stores.audit.chain import bytes_to_seal, parse
from toolhub_service.stores.audit.keyring import Mac, key_id, open_keyring, rotate
from toolhub_service.stores.audit.log import WriterTiming


def test_the_mac_is_hmac_sha256() -> None:
    for key, message in ((b"\1" * 32, b""), (b"k" * 32, b"message" * 99)):
        assert Mac(key).hex(message) == hmac.new(key, message, hashlib.sha256).hexdigest()
        assert Mac(key).fits(message, Mac(key).hex(message))
        assert not Mac(key).fits(message, "é")


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "audit.key"
    first = open_keyring(path, create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert open_keyring(path, create=True).active_id == first.active_id
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", ["", "abc\n", "0123 zz\n", f"{'0' * 12} {'00' * 32}\n", f"{key_id(b'1')} 31\n"])
def test_a_damaged_key_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "audit.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(HubFailure) as caught:
        open_keyring(path, create=True)
    assert caught.value.reason.name == "AUDIT_KEY_INVALID"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    open_keyring(path, create=True)
    path.chmod(0o640)
    with pytest.raises(HubFailure) as caught:
        open_keyring(path, create=False)
    assert caught.value.reason.name == "AUDIT_KEY_EXPOSED"


async def test_after_a_rotation_the_new_key_signs_and_the_old_events_still_verify(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    await log.close()
    new = rotate(files_in(tmp_path)[2])
    log = await started_log(tmp_path)
    await log.append_durably(called(2))
    old_event, new_event = await log.read(EVERYTHING, after=None, limit=9)
    await log.close()
    assert new_event.key_id == new.active_id != old_event.key_id
    assert verified(tmp_path).ok


async def test_the_database_is_for_its_owner_only(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    for name in ("audit.db", "audit.db-wal", "audit.db-shm", "checkpoints/audit.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    await log.close()


async def test_every_run_is_a_chain_of_its_own(tmp_path: Path) -> None:
    for run in range(3):
        log = await started_log(tmp_path)
        await log.append_durably(called(run))
        await log.close()
    verification = verified(tmp_path)
    assert (verification.ok, verification.writers, verification.events_checked) == (True, 3, 3)


async def test_the_chain_is_attested_after_so_many_events_and_at_the_end(tmp_path: Path) -> None:
    carried: list[str] = []
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0, checkpoint_events=4), witness=carried.append)
    for number in range(1, 11):
        await log.append_durably(called(number))
    await log.close()
    kinds = [(line["kind"], line["count"]) for line in map(orjson.loads, carried)]
    assert kinds == [("open", 0), ("periodic", 4), ("periodic", 8), ("close", 10)]
    assert files_in(tmp_path)[1].read_text().splitlines() == carried


async def test_the_chain_is_attested_after_so_long_even_when_nothing_more_happens(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0, checkpoint_s=0.05))
    await log.append_durably(called(1))
    connection = sqlite3.connect(files_in(tmp_path)[0])
    while (attested := connection.execute("SELECT count(*) FROM checkpoints").fetchone()) < (2,):
        await log.verify()
    connection.close()
    await log.close()
    assert attested == (2,)


async def test_log_whose_disk_fails_at_its_start_is_refused_as_broken(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file where the folder of the key should be")
    with pytest.raises(ToolFailure) as refused:
        await started_log(tmp_path)
    assert (refused.value.error.kind, refused.value.error.details["cause"]) == (ErrorKind.IO_ERROR, "disk")


async def test_what_is_on_disk_is_read_while_the_disk_fails_and_no_more_once_the_log_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=3_600.0))
    await log.append_durably(called(1))

    def defect(event: Event) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", defect)
    log.append(called(2))
    assert [each.event.at_unix_ms for each in await log.read(EVERYTHING, after=None, limit=9)] == [1]
    read, closed = await asyncio.gather(log.read(EVERYTHING, after=None, limit=9), log.close(), return_exceptions=True)
    for failure in (read, closed):
        assert isinstance(failure, ToolFailure)
        assert (failure.error.kind, failure.error.details["cause"]) == (ErrorKind.IO_ERROR, "disk")


async def test_the_end_of_a_log_ends_its_watchers(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    tail = log.tail(EVERYTHING)
    await log.append_durably(called(1))
    await log.close()
    async with asyncio.timeout(60):
        assert [each.event.at_unix_ms async for each in tail] == [1]


async def test_pruned_events_are_gone_and_the_rest_still_verifies(tmp_path: Path) -> None:
    old = await started_log(tmp_path, name="old")
    for number in range(1, 6):
        await old.append_durably(called(number))
    await old.close()
    log = await started_log(tmp_path, name="new")
    for number in range(4, 9):
        await log.append_durably(called(number))
    assert await asyncio.to_thread(log.prune, 6) == 5 + 2
    assert (await log.verify()).ok
    await log.append_durably(called(9))
    await log.close()
    verification = verified(tmp_path)
    assert (verification.ok, verification.events_checked) == (True, 4)

    connection = sqlite3.connect(files_in(tmp_path)[0])
    connection.execute("DELETE FROM events WHERE sequence = 3")
    connection.commit()
    connection.close()
    assert [fault.sequence for fault in verified(tmp_path).faults] == [3]


async def test_pruning_nothing_changes_nothing(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(5))
    assert await asyncio.to_thread(log.prune, 5) == 0
    await log.close()
    assert "prune" not in files_in(tmp_path)[1].read_text()


async def test_an_export_carries_everything_needed_to_verify_it_elsewhere(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    for number in range(1, 4):
        log.append(called(number, purpose='a "quoted" \n line ü'))
    lines = [line async for line in log.export(EVERYTHING)]
    await log.close()
    mac = open_keyring(files_in(tmp_path)[2], create=False).chain()
    assert mac is not None
    previous = "0" * 64
    for number, line in enumerate(lines, start=1):
        record = orjson.loads(line)
        body = line[line.index(b'"event":') + 8 : -2]
        assert parse(body) == called(number, purpose='a "quoted" \n line ü')
        assert mac.fits(bytes_to_seal(previous, record["writer"], number, record["key_id"], body), record["mac"])
        previous = record["mac"]


async def test_a_damaged_log_is_reported_when_it_is_read(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    connection = sqlite3.connect(files_in(tmp_path)[0])
    connection.execute("UPDATE events SET body = 'x'")
    connection.commit()
    connection.close()
    with pytest.raises(HubFailure) as caught:
        await log.read(EVERYTHING, after=None, limit=1)
    assert caught.value.reason.name == "AUDIT_DAMAGED"
    await log.close()
