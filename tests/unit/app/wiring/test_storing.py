"""Which stores a configuration deps, and that they are opened all or none."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub import settings_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import Deps, SystemClock, SystemRandomness, make_ladder
from toolhub_service.app.wiring.stores import Stores, make_stores
from toolhub_service.app.wiring.telemetry import open_observing
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sandbox.script_python import ScriptPython
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.inner_log_records import INNER_CALLS, InnerLogs
from toolhub_service.stores.memory.items import InProcessItems
from toolhub_service.stores.memory.jobs import MemoryJobs
from toolhub_service.stores.memory.keys import MemoryKeys
from toolhub_service.stores.memory.records import MemoryApprovals, MemoryArtifacts, MemoryPins, MemoryRecords
from toolhub_service.stores.memory.usage import MemoryUsage


def _deps(folder: Path, **sections: Any) -> Deps:
    settings = settings_of(folder, sections)
    paths = Paths(settings)
    paths.make()
    observing = open_observing(settings, Redactor(), is_worker=True)
    ladder = make_ladder(settings)
    return Deps(
        settings=settings,
        paths=paths,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        redactor=Redactor(),
        observing=observing,
        ladder=ladder,
        script_python=ScriptPython(ladder),
    )


def _kinds(stores: Stores) -> list[str]:
    return [type(each).__name__ for each in (stores.jobs, stores.keys, stores.approvals, stores.artifacts)]


EXTRAS = ("docket", "langchain_core", "mcp", "mcp_types", "obstore", "psycopg", "pydantic", "redis")
"""What a start pays for only where it is needed: the MCP SDK alone takes as long as all the rest of a hub."""
REDIS, POSTGRES = "redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/hub"


@pytest.mark.parametrize(
    ("stores", "kinds"),
    [
        ({}, ["SqliteJobs", "SqliteKeys", "SqliteApprovals", "SqliteArtifacts"]),
        ({"kind": "memory"}, ["MemoryJobs", "MemoryKeys", "MemoryApprovals", "MemoryArtifacts"]),
        ({"redis_url": REDIS}, ["RedisJobs", "RedisKeys", "RedisApprovals", "RedisArtifacts"]),
        ({"postgres_url": POSTGRES}, ["PostgresJobs", "SqliteKeys", "SqliteApprovals", "SqliteArtifacts"]),
        (
            {"redis_url": REDIS, "postgres_url": POSTGRES},
            ["PostgresJobs", "RedisKeys", "RedisApprovals", "RedisArtifacts"],
        ),
        (
            {"kind": "postgres", "postgres_url": POSTGRES},
            ["PostgresJobs", "PostgresKeys", "PostgresApprovals", "PostgresArtifacts"],
        ),
        (
            {"kind": "postgres", "redis_url": REDIS, "postgres_url": POSTGRES},
            ["PostgresJobs", "PostgresKeys", "PostgresApprovals", "PostgresArtifacts"],
        ),
    ],
)
async def test_configuration_names_the_stores(tmp_path: Path, stores: dict[str, str], kinds: list[str]) -> None:
    made = make_stores(_deps(tmp_path, stores=stores))
    assert _kinds(made) == kinds
    counted_in = "Redis" if "redis_url" in stores else "Postgres" if stores.get("kind") == "postgres" else "None"
    assert type(made.counts).__name__.startswith(counted_in)


async def test_memory_of_one_worker_is_not_shared_with_others(tmp_path: Path) -> None:
    with pytest.raises(HubFailure) as refused:
        make_stores(_deps(tmp_path, stores={"kind": "memory"}, server={"workers": 2}))
    assert refused.value.reason.name == "STORES_NOT_SHARED"


async def test_postgres_that_is_not_named_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(HubFailure, match=r"set stores\.postgres_url") as refused:
        make_stores(_deps(tmp_path, stores={"kind": "postgres", "redis_url": REDIS}))
    assert refused.value.reason.name == "STORES_NEED_POSTGRES"


@pytest.mark.parametrize(
    ("module", "stores", "extra"),
    [
        ("toolhub_service.stores.redis.link", {"redis_url": REDIS}, "extras install redis"),
        ("toolhub_service.stores.postgres.link", {"postgres_url": POSTGRES}, "extras install postgres"),
        (
            "toolhub_service.stores.postgres.link",
            {"kind": "postgres", "postgres_url": POSTGRES},
            "extras install postgres",
        ),
    ],
)
async def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, stores: dict[str, str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HubFailure) as missing:
        make_stores(_deps(tmp_path, stores=stores))
    assert missing.value.reason.name == "EXTRA_MISSING"
    assert extra in str(missing.value)


async def test_embedded_hub_that_serves_has_imported_no_extra(tmp_path: Path) -> None:
    script = f"""
import asyncio, pathlib, sys
from tests.hub import running_hub

async def served():
    async with running_hub(pathlib.Path({str(tmp_path)!r})) as hub:
        assert (await hub.invoke("core/util.time.now")).ok

asyncio.run(served())
print([name for name in {EXTRAS!r} if name in sys.modules])
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "[]"


class RecordingPart:
    """One thing to be opened, and what was done with it."""

    def __init__(self, name: str, done: list[str], *, refuses: bool = False) -> None:
        self._name = name
        self._done = done
        self._refuses = refuses

    async def start(self) -> None:
        self._done.append(f"start {self._name}")
        if self._refuses:
            raise OSError("the disk is gone")

    async def close(self) -> None:
        self._done.append(f"close {self._name}")


def _stores(*beneath: RecordingPart) -> Stores:
    return Stores(
        jobs=MemoryJobs(),
        keys=MemoryKeys(SystemClock()),
        approvals=MemoryApprovals(),
        artifacts=MemoryArtifacts(),
        pins=MemoryPins(),
        usage=MemoryUsage(30),
        memory=InProcessItems(),
        inner_log=InnerLogs(MemoryRecords(INNER_CALLS)),
        credentials=Credentials(MemoryRecords(CREDENTIALS)),
        beneath=beneath,
    )


async def test_stores_open_in_order_and_close_in_reverse() -> None:
    done: list[str] = []
    stores = _stores(RecordingPart("file", done), RecordingPart("link", done))
    await stores.start()
    await stores.close()
    assert done == ["start file", "start link", "close link", "close file"]


async def test_a_store_that_cannot_be_opened_closes_those_that_were() -> None:
    done: list[str] = []
    stores = _stores(
        RecordingPart("file", done), RecordingPart("link", done, refuses=True), RecordingPart("other", done)
    )
    with pytest.raises(OSError, match="the disk"):
        await stores.start()
    assert done == ["start file", "start link", "close link", "close file"]
