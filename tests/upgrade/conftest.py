"""A copy of what was kept, laid out for a hub of today."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.archives import guard_extraction
from tests.fakes.mcp_servers.scripted import Script, serving
from tests.processes import Served, served
from tests.upgrade import kept
from tests.upgrade.wire import Client

ROOT = Path(__file__).parents[2]
FORMER = "9739ead52024339a22cd27812896f05b80c00a59"
"""The last commit of the version before this one; moved on with each release."""
EVERY_STORE = os.environ.get("TEST_ACCEPTANCE") == "upgrade" or "TOOLHUB_CHAOS_KILLS" in os.environ
"""`make acceptance-upgrade` and `make chaos`; else one store, for two versions of the hub take their time."""
KEPT = [*(("befa727", backend) for backend in kept.BACKENDS), ("304b4fb", "embedded")]
"""The first is the oldest version whose data folders are promised to go on; the last wrote today's records."""


@dataclass(frozen=True, slots=True)
class Running:
    """A hub on that copy, and who asks it."""

    process: Served
    robot: Client
    judge: Client
    boss: Client
    papers: Script
    """The MCP server that its pins are of."""


@dataclass(frozen=True, slots=True)
class FormerData:
    version: str
    settings: Path
    data: Path
    expected: dict[str, Any]
    """What the former version said and read."""

    @property
    def binds_workspaces(self) -> bool:
        """Whether its approvals name the workspace that they hold in: one that does not is asked for anew."""
        return self.version != "befa727"

    @asynccontextmanager
    async def hub(self, former: Path | None = None) -> AsyncIterator[Running]:
        """`former`: the code of another version, which it runs."""
        environment = {"PYTHONPATH": python_path(former)} if former else {}
        script = Script(pages=[[kept.STEADY, kept.CHANGED, kept.ACCEPTED, kept.REFUSED]])
        async with serving(script) as url:
            kept.write_sources(self.data, url)
            async with (
                served(
                    self.data, "--config", str(self.settings), environment=environment, as_program=former is not None
                ) as process,
                grpc.aio.insecure_channel(process.address) as channel,
            ):
                robot, judge, boss = (Client(channel, self.expected["api_keys"][name]) for name in kept.PRINCIPALS)
                yield Running(process, robot, judge, boss, script)


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the former version: `service` and `gen/python` below it."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", FORMER, "service/toolhub_service", "gen/python"],
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        # Whoever clones decides how deep, and a CI that clones the last commit alone tests all the rest.
        pytest.skip(f"the history of this checkout does not reach back to {FORMER}: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        guard_extraction(archive).extractall(folder)
    return folder


def python_path(former: Path) -> str:
    """PYTHONPATH of a program that runs the code of that version, with the tools of these tests."""
    return os.pathsep.join(map(str, (former / "service", former / "gen/python", ROOT)))


@pytest.fixture(params=KEPT, ids=" ".join)
def former_data(request: pytest.FixtureRequest, tmp_path: Path) -> FormerData:
    version, backend = request.param
    expected = kept.unpack(version, backend, tmp_path)
    settings, data = tmp_path / "settings.yaml", tmp_path / "data"
    stores = {}
    if backend == "redis":
        stores["redis_url"] = request.getfixturevalue("redis_url")
        kept.restore_redis(stores["redis_url"], json.loads((tmp_path / "redis.json").read_text()))
    if backend == "postgres":
        stores["postgres_url"] = request.getfixturevalue("postgres_url")
        kept.restore_postgres(stores["postgres_url"], (tmp_path / "postgres.sql").read_text(), data)
    kept.write_settings(settings, kept.tools("tests.upgrade.kept_tools", held=False), stores)
    return FormerData(version, settings, data, expected)
