"""Two versions of the hub on one Redis or one PostgreSQL, replaced one after the other while work goes on.

The former version is taken out of the repository's history and runs as it was, beside the one of today. Both see one
another's jobs, keys, approvals and artifacts; what one leaves, by a drain or by a kill, the other one finishes; and
a watcher of a job gets every state once, from either of them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml

from tests.processes import Served, refused, served
from tests.upgrade.conftest import EVERY_STORE, python_path
from tests.upgrade.wire import APPROVE, Client
from toolhub_service.stores.sqlite import migrations as sqlite_migrations

KEYS = {name: f"thk_{number:08x}_{'k' * 43}" for number, name in enumerate(("robot", "judge", "boss"), start=1)}
POLICY = """\
extends: none
roles:
- {principals: [robot], roles: [agent]}
- {principals: [judge], roles: [approver]}
- {principals: [boss], roles: [operator, auditor]}
rules:
- {id: signing-needs-a-yes, effect: REQUIRE_APPROVAL, tools: [side/text.sign], reason: A signature binds.}
"""

pytestmark = pytest.mark.slow


@dataclass
class OldAndNewHub:
    """Data folders of an old and of a new hub that share everything hubs can share."""

    folder: Path
    former: Path
    stores: dict[str, Any]
    was_started: bool = field(default=False)

    def hold(self, name: str) -> Path:
        return self.folder / f"{name}.hold"

    def prepare(self) -> None:
        (self.folder / "policy.yaml").write_text(POLICY)
        for name in ("old", "new"):
            data = self.folder / name
            data.mkdir(mode=0o700)
            stored = {
                key.rpartition("_")[0]: {"name": who, "sha256": hashlib.sha256(key.encode()).hexdigest()}
                for who, key in KEYS.items()
            }
            keys = data / "api-keys.yaml"
            keys.touch(0o600)
            keys.write_text(yaml.safe_dump(stored))
            self._settings(name)

    def _settings(self, name: str) -> None:
        arguments = {"hub": name, "hold": str(self.hold(name))}
        tools = [{"tool": f"tests.upgrade.side_tools:{tool}", "args": arguments} for tool in ("Works", "Signs")]
        settings = {
            "auth": {"modes": ["api-key"]},
            "policy": {"file": str(self.folder / "policy.yaml"), "reload_s": 0},
            "tools": {"trusted_namespaces": ["tests.upgrade.side_tools"], "custom": tools},
            "stores": self.stores,
            "artifacts": {"folder": str(self.folder / "artifacts")},
            "jobs": {"heartbeat_s": 0.2, "dead_after_s": 2.0},
            "server": {"drain_s": 0.2},
        }
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))

    @asynccontextmanager
    async def hub(self, name: str) -> AsyncIterator[tuple[Served, Client, Client, Client]]:
        """`old` runs the former version's code."""
        data, environment = self.folder / name, {}
        if name == "old":
            environment = {"PYTHONPATH": python_path(self.former)}
        if self.was_started:  # the second on the same stores: what hubs share by file
            other = self.folder / ("old" if name == "new" else "new")
            for shared in ("plan.key", *(["audit.key"] if "postgres_url" in self.stores else [])):
                if (other / shared).exists() and not (data / shared).exists():
                    shutil.copy2(other / shared, data / shared)
        config = str(self.folder / f"{name}.yaml")
        async with (
            served(data, "--config", config, environment=environment, as_program=name == "old") as process,
            grpc.aio.insecure_channel(process.address) as channel,
        ):
            self.was_started = True
            robot, judge, boss = (Client(channel, KEYS[who]) for who in ("robot", "judge", "boss"))
            yield process, robot, judge, boss


@pytest.fixture(params=["redis", "postgres"] if EVERY_STORE else ["postgres"])
def hubs(request: pytest.FixtureRequest, former: Path, tmp_path: Path) -> OldAndNewHub:
    if request.param == "redis":
        stores = {"redis_url": request.getfixturevalue("redis_url")}
    else:
        stores = {"kind": "postgres", "postgres_url": request.getfixturevalue("postgres_url")}
    hubs = OldAndNewHub(tmp_path, former, stores)
    hubs.prepare()
    return hubs


@pytest.mark.promise("upgrade.side-by-side")
async def test_versions_side_by_side_share_all_work_and_finish_what_the_other_leaves(hubs: OldAndNewHub) -> None:
    hubs.hold("old").touch()
    async with hubs.hub("new") as (new, at_new, judge_at_new, boss):  # the layout is the newer one's from the start
        async with hubs.hub("old") as (old, at_old, judge_at_old, _):
            await _share(at_old, at_new, judge_at_new)
            await _share(at_new, at_old, judge_at_old, mark="back")
            left = (await at_old.submit("side/text.work", text="left by the old", key="left-1"))["job_id"]
            await at_old.reached(left, "RUNNING")
            watching = asyncio.create_task(at_new.reached(left, "SUCCEEDED"))
            old.signal(signal.SIGTERM)  # it drains: the roll forward
            history = await watching
            _assert_whole(history)
            assert _value(history[-1]["result"]) == {"text": "left by the old", "hub": "new"}
            assert await old.process.wait() == 0
        again = await at_new.submit("side/text.work", text="left by the old", key="left-1")
        assert again["job_id"] == left
        hubs.hold("old").unlink()
        hubs.hold("new").touch()
        async with hubs.hub("old") as (_, at_old, _, _):  # and the roll back
            left = (await at_new.submit("side/text.work", text="left by the new"))["job_id"]
            await at_new.reached(left, "RUNNING")
            watching = asyncio.create_task(at_old.reached(left, "SUCCEEDED"))
            await at_old.job(left)
            new.signal(signal.SIGKILL)
            history = await watching
            _assert_whole(history)
            assert _value(history[-1]["result"]) == {"text": "left by the new", "hub": "old"}
        await new.process.wait()
    hubs.hold("new").unlink()
    async with hubs.hub("new") as (_, at_new, _, boss):
        _assert_whole(await at_new.reached(left, "SUCCEEDED"))
        if "postgres_url" in hubs.stores:
            verified = await boss.verified()
            assert verified["ok"], verified


async def _share(one: Client, other: Client, judge: Client, mark: str = "there") -> None:
    """What was done at one hub is so at the other, too."""
    job = await one.submit("side/text.sign", text=f"job {mark}", key=f"job-{mark}")
    seen = asyncio.create_task(other.reached(job["job_id"], "AWAITING_APPROVAL"))
    approval_id = (await seen)[-1].get("approval_id") or (await other.job(job["job_id"]))["approval_id"]
    await judge.decide(approval_id, APPROVE)  # asked by one version, decided at the other
    artifact = await one.write(f"bytes {mark}".encode())
    assert await other.read(artifact["artifact_id"]) == f"bytes {mark}".encode()
    needed = await one.invoke("side/text.sign", text=mark, key=f"call-{mark}", request_id=f"request-{mark}")
    assert needed["error"]["kind"] == "ERROR_KIND_APPROVAL_REQUIRED", needed


def _assert_whole(history: list[dict[str, Any]]) -> None:
    """No entry is missing and none is sent twice, from the one that the watch began with."""
    sequences = [int(status["sequence"]) for status in history]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences))), history


def _value(result: dict[str, Any]) -> Any:
    assert result.get("ok"), result
    return json.loads(base64.b64decode(result["result_json"]))


@pytest.mark.promise("upgrade.side-by-side")
async def test_an_older_hub_refuses_an_unknown_layout_and_states_the_remedy(former: Path, tmp_path: Path) -> None:
    """The embedded store's; that a running older hub goes on is what the other test shows."""
    data = tmp_path / "data"
    async with served(data) as hub:
        assert await hub.stop() == 0
    with closing(sqlite3.connect(data / "hub.db")) as database:
        database.execute(f"PRAGMA user_version = {len(sqlite_migrations.MIGRATIONS) + 1}")
    code, words = await refused(data, PYTHONPATH=python_path(former))
    assert (code != 0, "Start the newer hub" in words) == (True, True), words
