"""The audit log is removed, replaced or changed under a running hub: what cannot be recorded does not happen."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.hub import OPEN_POLICY, RunningHub, running_hub, settings_of
from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import started_log
from tests.unit.stores.audit.postgres_logs import execute
from toolhub.v1 import error_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import open_hub
from toolhub_service.app.offline import OfflineRefused, begin_audit, verify_audit
from toolhub_service.app.serving import follow
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.postgres import PostgresEvents
from toolhub_service.stores.audit.sqlite import SqliteEvents, SqliteEventTable


@pytest.fixture(autouse=True)
def checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The periodic look, with every pass of the writer's thread."""
    for events in (SqliteEvents, PostgresEvents):
        monkeypatch.setattr(events, "check_s", 0.01)


def _remove(name: str) -> Callable[[Paths], None]:
    return lambda paths: paths.audit.with_name(name).unlink()


def _sql(statement: str) -> Callable[[Paths], None]:
    def run(paths: Paths) -> None:
        with closing(sqlite3.connect(paths.audit)) as connection, connection:
            connection.execute(statement)

    return run


def _replace(paths: Paths) -> None:
    copy = paths.audit.with_name("copy.db")
    with closing(sqlite3.connect(paths.audit)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
        new.execute("DELETE FROM events")
        new.commit()
    copy.rename(paths.audit)


ATTACKS = {
    "database removed": _remove("audit.db"),
    "write-ahead log removed": _remove("audit.db-wal"),
    "shared memory removed": _remove("audit.db-shm"),
    "checkpoints removed": _remove("audit-checkpoints.jsonl"),
    "checkpoints cut": lambda paths: paths.audit_checkpoints.write_bytes(b""),
    "database replaced": _replace,
    "table dropped": _sql("DROP TABLE events"),
    "copies dropped": _sql("DROP TABLE checkpoints"),
    "row deleted": _sql("DELETE FROM events WHERE sequence = 2"),
    "last row deleted": _sql("DELETE FROM events WHERE sequence = (SELECT max(sequence) FROM events)"),
    "trigger": _sql("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events WHERE row = NEW.row; END"),
}
PASSING = {"write-ahead log removed", "shared memory removed"}
"""Opened anew the log is whole: SQLite carries what the nameless file held over when it closes it."""

_FORGET = "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"
_DELETE = "DELETE FROM audit_events WHERE arrival = NEW.arrival; RETURN NULL;"
POSTGRES_ATTACKS = {
    "table dropped": ["DROP TABLE audit_events"],
    "copies dropped": ["DROP TABLE audit_checkpoints"],
    "table replaced": [
        "ALTER TABLE audit_events RENAME TO kept",
        "CREATE TABLE audit_events (LIKE kept INCLUDING ALL)",
    ],
    "row deleted": ["DELETE FROM audit_events WHERE sequence = 2"],
    "last row deleted": ["DELETE FROM audit_events WHERE sequence = (SELECT max(sequence) FROM audit_events)"],
    "log truncated": ["TRUNCATE audit_events"],
    "trigger that swallows": [
        _FORGET.format("RETURN NULL;"),
        "CREATE TRIGGER t BEFORE INSERT ON audit_events FOR EACH ROW EXECUTE FUNCTION forget()",
    ],
    "trigger that deletes": [
        _FORGET.format(_DELETE),
        "CREATE TRIGGER t AFTER INSERT ON audit_events FOR EACH ROW EXECUTE FUNCTION forget()",
    ],
    "rule": ["CREATE RULE r AS ON INSERT TO audit_events DO INSTEAD NOTHING"],
}
REFUSED_AT_START = set(POSTGRES_ATTACKS) - {"row deleted", "last row deleted"}
"""A log that lacks some events of runs that are over is found by verification alone: so does one that was restored."""


@asynccontextmanager
async def _losing_hub(tmp_path: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[RunningHub]:
    """A hub that cannot close its audit log in good order in the end."""
    running = running_hub(tmp_path, policy=OPEN_POLICY, settings=settings)
    hub = await running.__aenter__()
    try:
        yield hub
    finally:
        with suppress(ToolFailure):
            await running.__aexit__(None, None, None)


async def _write(hub: RunningHub, path: str) -> error_pb2.ToolError | None:
    result = await hub.invoke("core/fs.writeText", {"path": path, "text": path}, request_id="r")
    return None if result.ok else result.error


@pytest.mark.parametrize("attack", sorted(set(ATTACKS) - PASSING))
async def test_side_effects_are_refused_once_the_log_was_changed(tmp_path: Path, attack: str) -> None:
    """Fails at befa727: writes succeed (of "table dropped" only once the table was made anew)."""
    async with _losing_hub(tmp_path) as hub:
        paths = Paths(hub.hub.settings)
        for number in range(3):
            assert await _write(hub, f"before{number}") is None
        ATTACKS[attack](paths)
        for _ in range(10_000):  # until the periodic look has come
            if not (await hub.invoke("core/util.time.now")).ok:
                break
        for number in range(10):
            error = await _write(hub, f"after{number}")
            assert error is not None
            assert error.kind == error_pb2.ERROR_KIND_IO_ERROR
            assert "audit.db" not in str(error)
        assert not list(hub.workspace("r").glob("after*"))
        assert not (attack == "database removed" and paths.audit.exists())


@pytest.mark.parametrize("attack", ["database removed", *sorted(PASSING)])
async def test_the_next_effect_is_recorded_in_a_file_that_has_its_name_or_does_not_happen(
    tmp_path: Path, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the periodic look. Fails at befa727: the event goes into a file without a name."""
    monkeypatch.setattr(SqliteEvents, "check_s", 3_600.0)
    async with _losing_hub(tmp_path) as hub:
        assert await _write(hub, "before") is None
        ATTACKS[attack](Paths(hub.hub.settings))
        error = await _write(hub, "after")
        assert error is not None
        assert not (hub.workspace("r") / "after").exists()


async def test_health_names_the_services_without_effects(tmp_path: Path) -> None:
    """Fails at befa727: SERVING throughout."""
    async with _losing_hub(tmp_path, {"policy": {"reload_s": 0.05}}) as hub:
        follower = asyncio.create_task(follow(hub.hub, asyncio.Event()))
        ATTACKS["database removed"](Paths(hub.hub.settings))
        health = health_pb2_grpc.HealthStub(hub.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="toolhub.v1.ToolService"), timeout=60)
        while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass
        for service in ("", "toolhub.v1.AuditService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        follower.cancel()
        await asyncio.wait({follower})


async def test_a_missing_log_is_begun_anew_only_by_command_and_the_log_records_it(tmp_path: Path) -> None:
    """Fails at befa727: the hub starts with 0 events, and verification finds nothing."""
    settings = settings_of(tmp_path)
    paths = Paths(settings)
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await _write(hub, "a") is None
    with pytest.raises(OfflineRefused, match="still there"):
        await begin_audit(settings, "too early")
    for file in paths.data_dir.glob("audit.db*"):
        file.unlink()
    with pytest.raises(HubFailure, match="toolhub audit begin"):
        await open_hub(settings)
    paths.audit_checkpoints.unlink()
    with pytest.raises(HubFailure, match="toolhub audit begin"):
        await open_hub(settings)
    with pytest.raises(OfflineRefused, match="are gone, yet"):
        verify_audit(settings)
    await begin_audit(settings, "lost with the disk")
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        (first,) = await hub.events(types=frozenset({EventType.CONFIG_LOADED}))
        assert first.event.attributes == {"audit_log": "begun anew", "reason": "lost with the disk"}
        assert (await hub.hub.audit.verify()).ok


async def test_a_hub_does_not_start_where_checkpoints_or_a_table_are_missing(tmp_path: Path) -> None:
    """Fails at befa727: it starts, and makes the table anew."""
    paths = Paths(settings_of(tmp_path))
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await _write(hub, "a") is None
    kept = paths.audit_checkpoints.rename(tmp_path / "kept")
    with pytest.raises(HubFailure, match="checkpoint file"):
        await open_hub(settings_of(tmp_path))
    kept.rename(paths.audit_checkpoints)
    _sql("DROP TABLE checkpoints")(paths)
    with pytest.raises(HubFailure, match="missing"):
        await open_hub(settings_of(tmp_path))


async def test_a_hub_does_not_start_where_all_events_are_gone_that_checkpoints_attest(tmp_path: Path) -> None:
    """Fails at befa727: it starts."""
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await _write(hub, "a") is None
    _sql("DELETE FROM events")(Paths(settings_of(tmp_path)))
    with pytest.raises(HubFailure, match="holds no event"):
        await open_hub(settings_of(tmp_path))


async def test_a_worker_that_is_overtaken_while_it_starts_the_first_log_takes_it_for_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = SqliteEventTable.is_empty

    async def another() -> None:
        log = await started_log(tmp_path)
        await log.append_durably(called(1))
        await log.close()

    def is_empty(table: SqliteEventTable) -> bool:
        monkeypatch.setattr(SqliteEventTable, "is_empty", looks)
        asyncio.run(another())
        return looks(table)

    monkeypatch.setattr(SqliteEventTable, "is_empty", is_empty)
    log = await started_log(tmp_path)
    assert (await log.verify()).ok
    await log.close()


def _tables(url: str) -> list[Any]:
    return execute(url, "SELECT oid::bigint FROM pg_class WHERE relname LIKE 'audit_%%' ORDER BY oid")


@pytest.mark.parametrize("attack", sorted(POSTGRES_ATTACKS))
async def test_side_effects_are_refused_once_the_log_in_postgresql_was_changed(
    tmp_path: Path, postgres_url: str, attack: str
) -> None:
    """Fails at befa727: health is SERVING throughout."""
    settings = {"stores": {"postgres_url": postgres_url}, "policy": {"reload_s": 0.05}}
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings) as hub:
        assert await _write(hub, "a run that ends, and is attested") is None
    async with _losing_hub(tmp_path, settings) as hub:
        for number in range(3):
            assert await _write(hub, f"before{number}") is None
        follower = asyncio.create_task(follow(hub.hub, asyncio.Event()))
        # The answers' events may still be on their way. With one after it a truncation is a chain that has lost its
        # start, as by retention: `verify` alone tells these apart.
        await hub.hub.audit.flush()
        execute(postgres_url, *POSTGRES_ATTACKS[attack])
        tables = _tables(postgres_url)
        health = health_pb2_grpc.HealthStub(hub.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="toolhub.v1.ToolService"), timeout=60)
        while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass
        watch.cancel()
        for number in range(3):
            error = await _write(hub, f"after{number}")
            assert error is not None
            assert error.kind == error_pb2.ERROR_KIND_IO_ERROR
            assert "audit_events" not in str(error)
        assert not list(hub.workspace("r").glob("after*"))
        follower.cancel()
        await asyncio.wait({follower})
    if attack in REFUSED_AT_START:
        with pytest.raises(HubFailure, match="toolhub audit begin"):
            await open_hub(settings_of(tmp_path, settings))
    assert _tables(postgres_url) == tables


async def test_a_log_that_postgresql_has_lost_is_begun_anew_only_by_command(tmp_path: Path, postgres_url: str) -> None:
    settings = settings_of(tmp_path, {"stores": {"postgres_url": postgres_url}})
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"stores": {"postgres_url": postgres_url}}) as hub:
        assert await _write(hub, "a") is None
    with pytest.raises(OfflineRefused, match="still there"):
        await begin_audit(settings, "too early")
    Paths(settings).audit_checkpoints.unlink()
    with pytest.raises(OfflineRefused, match="hold events"):
        await begin_audit(settings, "the events are still there")
    execute(postgres_url, "DROP TABLE audit_events, audit_checkpoints")
    await begin_audit(settings, "lost with the disk")
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"stores": {"postgres_url": postgres_url}}) as hub:
        (first,) = await hub.events(types=frozenset({EventType.CONFIG_LOADED}))
        assert first.event.attributes == {"audit_log": "begun anew", "reason": "lost with the disk"}
        assert (await hub.hub.audit.verify()).ok
    assert not Paths(settings).audit.exists()


async def test_files_of_a_hub_whose_log_is_in_postgresql_are_not_verified_but_the_hub_is_named(
    tmp_path: Path, postgres_url: str
) -> None:
    settings = {"stores": {"postgres_url": postgres_url}}
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings) as hub:
        assert await _write(hub, "a") is None
    paths = Paths(settings_of(tmp_path, settings))
    paths.audit_checkpoints.stat()
    with pytest.raises(OfflineRefused, match="in PostgreSQL: ask the running hub"):
        verify_audit(Settings(data_dir=str(paths.data_dir)))
    paths.audit.touch()  # of a log that the hub kept there before
    with pytest.raises(OfflineRefused, match="in PostgreSQL: ask the running hub"):
        verify_audit(settings_of(tmp_path, settings))


async def test_database_that_is_gone_is_reported_and_not_each_of_its_events(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await _write(hub, "a") is None
    paths = Paths(settings_of(tmp_path))
    paths.audit.unlink()
    with pytest.raises(OfflineRefused, match=r"audit.db is gone\. Restore"):
        verify_audit(Settings(data_dir=str(paths.data_dir)))


async def test_a_log_of_an_older_version_is_opened_and_goes_on(tmp_path: Path) -> None:
    """befa727 wrote it: a run that ended, and one that was killed. Its key seals nothing else."""
    paths, kept = Paths(settings_of(tmp_path)), Path(__file__).parent / "audit_of_befa727"
    paths.data_dir.mkdir(0o700)
    for name, path in (("audit-checkpoints.jsonl", paths.audit_checkpoints), ("test-only.key", paths.audit_key)):
        path.touch(0o600)
        path.write_bytes((kept / name).read_bytes())
    paths.audit.touch(0o600)
    with closing(sqlite3.connect(paths.audit)) as connection:
        connection.executescript((kept / "audit.sql").read_text("utf-8"))
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await _write(hub, "a") is None
        events = await hub.events()
        assert (await hub.hub.audit.verify()).ok
    assert [event.sequence for event in events] == [1, 2, 3, 4, 1, 2, 1, 2]
    assert {event.event.tool for event in events} == {"core/fs.writeText", "core/fs.readText"}
    verification = verify_audit(settings_of(tmp_path))
    assert (verification.faults, verification.writers, verification.events_checked) == ((), 3, 8)
    _sql("DELETE FROM events WHERE row = 6")(paths)
    (fault,) = verify_audit(settings_of(tmp_path)).faults  # the end of the killed run is attested by now
    assert fault.sequence == 2
