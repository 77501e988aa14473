"""Make what is kept of a hub of a former version: `python -m tests.upgrade.make VERSION CHECKOUT`.

VERSION names the folder of the archives, CHECKOUT is a work tree of that version (`git worktree add CHECKOUT VERSION`).
A real hub of it is started, asked over the wire, killed and started again; only what cannot be arranged over the wire
is put through its stores: times that lie far ahead, and one job with every field set. Run it from the commit that
added the archives: the names that it shares with both versions may have moved since.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc.aio
from msgspec import structs

from tests.fakes.mcp_servers.scripted import Script
from tests.fakes.mcp_servers.scripted import serving as serving_mcp
from tests.processes import Served, served
from tests.services.fixtures import _served as service
from tests.services.postgres_server import PostgresServer
from tests.services.programs import POSTGRES, REDIS, need
from tests.services.redis_server import RedisServer
from tests.upgrade import kept
from tests.upgrade.records import opened_stores, read_records
from tests.upgrade.wire import APPROVE, REJECT, Client

KEPT_TOOLS = Path(__file__).with_name("kept_tools.py")
MOVED = {
    "from toolhub_service.domain.result import EvidenceType, Progress": (
        "from toolhub_service.domain.progress import Progress\nfrom toolhub_service.domain.result import EvidenceType"
    )
}
"""Imports of the kept tools, as the former version spells them."""
FAR_UNIX_MS = 2_500_000_000_000


def main(version: str, checkout: Path) -> None:
    paths = [str(checkout / part) for part in ("service", "gen/python")]
    if sys.path[: len(paths)] != paths and not str(import_module("toolhub_service").__file__).startswith(paths[0]):
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        os.execv(sys.executable, [sys.executable, "-m", "tests.upgrade.make", version, str(checkout)])
    for backend in kept.BACKENDS:
        with tempfile.TemporaryDirectory(prefix="toolhub-kept-") as folder:
            Path(folder).chmod(0o755)
            asyncio.run(make(version, backend, Path(folder)))


async def make(version: str, backend: str, folder: Path) -> None:
    with (
        service(REDIS, RedisServer) as redis,
        service(POSTGRES, PostgresServer) as postgres,
    ):
        stores = {"redis": {"redis_url": redis.url}, "postgres": {"postgres_url": postgres.url}}.get(backend, {})
        source = KEPT_TOOLS.read_text()
        for today, then in MOVED.items():
            assert today in source
            source = source.replace(today, then)
        (folder / "tools").mkdir()
        (folder / "tools" / "kept_tools_then.py").write_text(source)
        names = kept.tools("kept_tools_then", held=True)
        kept.write_settings(folder / "settings.yaml", names, stores, max_running=3)
        expected = await FormerHub(folder).everything()
        contents = ["data", "expected.json"]
        (folder / "data" / "sources.yaml").unlink()
        shutil.rmtree(folder / "data" / "workspaces", ignore_errors=True)
        if backend == "redis":
            (folder / "redis.json").write_text(json.dumps(kept.dump_redis(redis.url), indent=0))
            contents.append("redis.json")
        if backend == "postgres":
            (folder / "postgres.sql").write_text(dump_postgres(postgres).replace(kept.site(folder / "data"), kept.SITE))
            contents.append("postgres.sql")
        (folder / "expected.json").write_text(json.dumps(expected, indent=1))
        path = kept.pack(version, backend, folder, contents)
        print(f"{path.name}: {path.stat().st_size} bytes, {sorted(p.name for p in (folder / 'data').rglob('*'))}")


def dump_postgres(server: PostgresServer) -> str:
    """Statements that any client can execute, whatever the version of the server."""
    command = [
        str(need(POSTGRES) / "pg_dump"),
        "--inserts",
        "--no-owner",
        "--no-privileges",
        "--no-comments",
        server.url,
    ]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    foreign = re.compile(r"^(SET |SELECT pg_catalog.set_config|--|\\).*$\n?", re.MULTILINE)
    return re.sub(r"\n{2,}", "\n", foreign.sub("", dump))


def has_progress(status: dict[str, Any]) -> bool:
    """The tool itself has begun."""
    return "progress" in status


@dataclass
class FormerHub:
    folder: Path
    keys: dict[str, str] = field(default_factory=dict)
    script: Script = field(default_factory=lambda: Script(pages=[[]]))
    jobs: dict[str, str] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def settings(self) -> Path:
        return self.folder / "settings.yaml"

    async def everything(self) -> dict[str, Any]:
        self.data.mkdir(0o700)
        (self.data / "policy.yaml").touch(0o600)
        (self.data / "policy.yaml").write_text(kept.POLICY)
        for name in kept.PRINCIPALS:
            command = [sys.executable, "-m", "toolhub_service", "keys", "create", name, "--data-dir", str(self.data)]
            made = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
            self.keys[name] = made.stdout.strip()
        async with serving_mcp(self.script) as url:
            kept.write_sources(self.data, url)
            async with self.hub() as (_, robot, judge, boss):
                await self.first_run(robot, judge, boss)
            async with self.hub(kill=True) as (_, robot, judge, boss):
                job = await robot.submit("kept/text.holdEffect", text="lost")
                self.jobs["lost"] = job["job_id"]
                await robot.history(job["job_id"], has_progress)
            async with self.hub(kill=True) as (_, robot, judge, boss):
                await robot.reached(self.jobs["lost"], "LOST")
                await self.last_run(robot, judge, boss)
        await self.through_the_stores()
        return {
            "api_keys": self.keys,
            "jobs": self.jobs,
            "approvals": self.approvals,
            "artifacts": self.artifacts,
            "wire": self.expected,
            "records": await self.records(),
        }

    async def first_run(self, robot: Client, judge: Client, boss: Client) -> None:
        self.expected["answers"] = {
            "key-ended": await robot.invoke("kept/text.write", text="once", key="key-ended"),
            "key-refused": await robot.invoke("kept/text.refuse", text="bad", key="key-refused"),
        }
        await self.make_jobs(robot, boss)
        await self.make_approvals(robot, judge)
        await self.make_pins(boss)
        cut = await robot.invoke("kept/text.echo", text=kept.TEXT, purpose=kept.PURPOSE, task_id="task-1")
        self.artifacts["result"] = cut["artifacts"][0]["artifact_id"]
        upload = await robot.write(kept.UPLOAD, name="bytes.bin", media_type="application/x-kept", task_id="task-1")
        self.artifacts["upload"] = upload["artifact_id"]
        while not await robot.found("herons"):  # noqa: ASYNC110  learnt within seconds; there is no event for it
            await asyncio.sleep(0.1)

    async def make_jobs(self, robot: Client, boss: Client) -> None:
        done = await robot.submit(
            "kept/text.echo", text=kept.TEXT, key="job-key", request_id="request-1", user_id="ada"
        )
        failed = await robot.submit("kept/text.refuse", text="bad")
        late = await robot.submit("kept/text.hold", text="late", timeout_s=0.3)
        stopped = await robot.submit("kept/text.hold", text="stopped")
        await robot.history(stopped["job_id"], has_progress)
        await robot.cancel(stopped["job_id"], "not needed any more")
        for state, job in (("SUCCEEDED", done), ("FAILED", failed), ("TIMED_OUT", late), ("CANCELLED", stopped)):
            self.jobs[state.lower()] = job["job_id"]
            await robot.reached(job["job_id"], state)

    async def make_approvals(self, robot: Client, judge: Client) -> None:
        async def asked(tool: str, text: str) -> str:
            refused = await robot.invoke(tool, text=text, request_id="request-2")
            assert refused["error"]["kind"] == "ERROR_KIND_APPROVAL_REQUIRED", refused
            return str(refused["error"]["details"]["approval_id"])

        sign = "kept/text.sign"
        for name in ("pending", "approved", "rejected", "used"):
            self.approvals[name] = await asked(sign, name)
        self.approvals["expired"] = await asked("kept/text.signSoon", "expired")
        self.approvals["question"] = await asked("kept/text.ask", "question")
        await judge.decide(self.approvals["approved"], APPROVE)
        await judge.decide(self.approvals["rejected"], REJECT)
        await judge.decide(self.approvals["used"], APPROVE)
        used = await robot.invoke(sign, text="used", request_id="request-2", approval_id=self.approvals["used"])
        assert used["ok"], used
        await judge.ended(self.approvals["expired"], "EXPIRED")
        for name in ("awaiting", "awaiting_too"):
            job = await robot.submit(sign, text=name)
            self.jobs[name], self.approvals[name] = job["job_id"], job["approval_id"]
        job = await robot.submit("kept/text.ask", text="asking")
        self.jobs["asking"] = job["job_id"]
        await robot.reached(job["job_id"], "AWAITING_APPROVAL")
        self.approvals["asking"] = (await robot.job(job["job_id"]))["approval_id"]

    async def make_pins(self, boss: Client) -> None:
        first = [kept.STEADY, kept.definition("changed", "Read a paper."), kept.definition("accepted", "Read a paper.")]
        self.script.pages[:] = [first]
        await boss.refresh("papers")
        self.script.pages[:] = [[kept.STEADY, kept.CHANGED, kept.ACCEPTED, kept.REFUSED]]
        await boss.refresh("papers")
        waiting = {pin["tool"]: pin for pin in await boss.pins("papers") if pin["state"] == "PIN_STATE_PENDING"}
        await boss.decide_pin(waiting["papers/accepted"], APPROVE)
        await boss.decide_pin(waiting["papers/refused"], REJECT)

    async def last_run(self, robot: Client, judge: Client, boss: Client) -> None:
        """What the hub says of all that has ended, then what is in flight when it is killed."""
        self.expected["jobs"] = {name: await robot.job(id) for name, id in self.jobs.items()}
        ended = {name: id for name, id in self.jobs.items() if "await" not in name and name != "asking"}
        self.expected["histories"] = {name: await robot.history(id) for name, id in ended.items()}
        self.expected["approvals"] = {name: await judge.approval(id) for name, id in self.approvals.items()}
        self.expected["artifacts"] = {name: await robot.artifact(id) for name, id in self.artifacts.items()}
        await boss.refresh("papers")
        self.expected["pins"] = await boss.pins("papers")
        self.expected["events"] = await boss.events()
        for name, tool in (("running", "hold"), ("begun", "holdEffect"), ("cancelling", "ignoreCancelling")):
            job = await robot.submit(f"kept/text.{tool}", text=name)
            self.jobs[name] = job["job_id"]
            await robot.history(job["job_id"], has_progress)
        await robot.cancel(self.jobs["cancelling"], "stop")
        await robot.reached(self.jobs["cancelling"], "CANCELLING")
        self.jobs["queued"] = (await robot.submit("kept/text.echo", text="queued"))["job_id"]
        held = asyncio.create_task(robot.invoke("kept/text.holdEffect", text="open", key="key-open"))
        while not any('"open"' in event.get("args_summary", "") for event in await boss.events()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        held.cancel()

    async def through_the_stores(self) -> None:
        """Approvals live thirty days at most, and uses half a year: theirs is put far ahead."""
        domain = {name: import_module(f"toolhub_service.domain.{name}") for name in ("job_machine", "usage", "job")}
        async with opened_stores(self.settings, self.data) as stores:
            for name in ("pending", "approved", "question", "awaiting", "awaiting_too", "asking"):
                approval = await stores.approvals.get(self.approvals[name])
                later = structs.replace(approval, expires_at_unix_ms=FAR_UNIX_MS, version=approval.version + 1)
                assert await stores.approvals.put(later)
            use = domain["usage"].ToolUse("robot", "kept/text.write", "", "feed otters by the river", FAR_UNIX_MS)
            await stores.usage.add([use])
            await self.add_whole_job(stores, domain)

    async def add_whole_job(self, stores: Any, domain: dict[str, Any]) -> None:
        """A job that has ended, with every field that a job, its mark and its result can have."""
        model = await stores.jobs.get(self.jobs["succeeded"])
        now = time.time_ns() // 1_000_000
        job_id = self.jobs["whole"] = "job-whole"
        progress = import_module("toolhub_service.domain.progress").Progress(3.0, 4.0, "steps", "nearly there", 1.5)
        mark = domain["job"].RemoteMark("mark-1", "remote-1", True, "http://gpu-1:8188", {"queue": "2"})
        state = type(model.state)
        status = model.status._replace(
            job_id=job_id, sequence=1, state=state.QUEUED, result=None, artifacts=(), progress=None
        )
        result = model.status.result
        queued = structs.replace(
            model,
            job_id=job_id,
            call=model.call._replace(call_id="call-whole", idempotency_key="", args={"text": "whole"}),
            status=status,
            version=1,
            runner="",
            runs=0,
            begun=False,
            expires_at_unix_ms=0,
        )
        assert await stores.jobs.create(queued) is None
        running = domain["job_machine"].moved(
            queued,
            state.RUNNING,
            now,
            progress=progress,
            runner="runner-1",
            runs=2,
            begun=True,
            remote=mark,
            approval_id="approval-whole",
            trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        assert await stores.jobs.put(running)
        ended = domain["job_machine"].moved(
            running,
            state.SUCCEEDED,
            now + 1,
            result=result._replace(attempts=2, replayed=True, defaults_applied=("/text",)),
            artifacts=result.artifacts,
            cancel_reason="no need",
            cancelled_by="boss",
            expires_at_unix_ms=FAR_UNIX_MS,
        )
        assert await stores.jobs.put(ended)

    async def records(self) -> dict[str, Any]:
        async with opened_stores(self.settings, self.data) as stores:
            return await read_records(stores, kept.KEYS, self.artifacts.values())

    @asynccontextmanager
    async def hub(self, *, kill: bool = False) -> AsyncIterator[tuple[Served, Client, Client, Client]]:
        async with AsyncExitStack() as stack:
            path = os.pathsep.join([os.environ["PYTHONPATH"], str(self.folder / "tools")])
            hub = await stack.enter_async_context(
                served(self.data, "--config", str(self.settings), environment={"PYTHONPATH": path}, as_program=True)
            )
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(hub.address))
            robot, judge, boss = (Client(channel, self.keys[name]) for name in kept.PRINCIPALS)
            yield hub, robot, judge, boss
            if kill:
                hub.signal(signal.SIGKILL)
                await hub.process.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
