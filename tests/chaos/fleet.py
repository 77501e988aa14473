"""Agents that submit jobs and follow them through a service whose replicas come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import grpc
import grpc.aio
import orjson

from toolhub.v1 import call_pb2, job_pb2, job_service_pb2, job_state_pb2
from toolhub_client import Hub, connect, jobs
from toolhub_client.channel import OPTIONS

RPC_S = 10.0
LOOK_S = 0.25
"""Between counts of the open jobs."""
OPEN = (
    job_state_pb2.JOB_STATE_QUEUED,
    job_state_pb2.JOB_STATE_AWAITING_APPROVAL,
    job_state_pb2.JOB_STATE_RUNNING,
    job_state_pb2.JOB_STATE_CANCELLING,
)
AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
IMPATIENT = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_CHANNELS = 8


@dataclass(slots=True)
class Submitted:
    marker: str
    tool: str
    job_ids: set[str] = field(default_factory=set)
    """More than one: the same key has made two jobs."""
    is_cancelled: bool = False
    """Whether cancelling was asked for."""


@dataclass(slots=True)
class WatchedJob:
    """What one watcher saw of one job, over all its connections."""

    job_id: str
    sequences: list[int] = field(default_factory=list)
    last: job_pb2.JobStatus | None = None
    connections: int = 0


@dataclass(frozen=True, slots=True)
class CountingHub:
    """The stub of a hub, as the client's watch needs it."""

    hub: Hub
    watched: WatchedJob

    def WatchJob(self, request: job_service_pb2.WatchJobRequest, **options: Any) -> Any:
        self.watched.connections += 1
        return self.hub.jobs.WatchJob(request, **options)


@dataclass(slots=True)
class ClientFleet:
    hubs: Sequence[Hub]
    random: Random
    submitted: dict[str, Submitted] = field(default_factory=dict)
    watched: list[WatchedJob] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    """How many jobs were open whenever somebody looked."""
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once as many jobs have been submitted as are to be open."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no more jobs are to be submitted."""
    _newest: asyncio.LifoQueue[str] = field(default_factory=asyncio.LifoQueue)
    """Jobs that nobody watches; an empty id sends a watcher home."""

    async def keep_open(self, count: int) -> None:
        """Submit until so many jobs are open, whenever fewer are, until it is over."""
        while not self.over.is_set():
            self.counted.append(await self.open_jobs())
            missing = count - self.counted[-1]
            async with asyncio.TaskGroup() as submitting:
                for _ in range(missing):
                    submitting.create_task(self.submit())
            self.busy.set()
            await asyncio.sleep(LOOK_S)

    async def until_none_is_open(self) -> None:
        while await self.open_jobs():  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(LOOK_S)

    async def open_jobs(self) -> int:
        asked = job_service_pb2.ListJobsRequest(states=OPEN, page_size=1)
        return int((await patient(lambda hub: hub.jobs.ListJobs(asked, timeout=RPC_S), self)).total_size)

    async def submit(self) -> None:
        marker = f"m{len(self.submitted):05d}"
        tool, args = self._work(marker)
        mine = self.submitted[marker] = Submitted(marker, tool)
        intent = call_pb2.ToolIntent(
            tool=tool, args_json=orjson.dumps(args), purpose="chaos", idempotency_key=f"key-{marker}"
        )
        asked = job_service_pb2.SubmitJobRequest(intent=intent)
        job = (await patient(lambda hub: hub.jobs.SubmitJob(asked, timeout=RPC_S), self)).job
        mine.job_ids.add(job.job_id)
        self._newest.put_nowait(job.job_id)
        if self.random.random() < 0.04:
            mine.is_cancelled = True
            await patient(lambda hub: hub.cancel_job(job.job_id, reason="chaos"), self)

    async def watch(self) -> None:
        """Follow one job after the other to its end, the newest first."""
        while job_id := await self._newest.get():
            watched = WatchedJob(job_id)
            self.watched.append(watched)
            stub = CountingHub(self.random.choice(self.hubs), watched)
            async for status in jobs.watch_one(cast("Any", stub), job_id, after_sequence=0, attempts=1_000):
                watched.sequences.append(status.sequence)
                watched.last = status

    def send_home(self, watchers: int) -> None:
        """So many watchers leave when they have seen the end of what they watch."""
        for _ in range(watchers):
            self._newest.put_nowait("")

    async def jobs(self) -> list[job_pb2.Job]:
        """Every job of the store, each with its result."""
        asked = job_service_pb2.ListJobsRequest(page_size=1_000)
        ids: list[str] = []
        while True:
            page = await self.hubs[0].jobs.ListJobs(asked, timeout=RPC_S)
            ids += [job.job_id for job in page.jobs]
            if not page.next_page_token:
                break
            asked.page_token = page.next_page_token
        room = asyncio.Semaphore(32)
        return list(await asyncio.gather(*(self._job(job_id, room) for job_id in ids)))

    async def _job(self, job_id: str, room: asyncio.Semaphore) -> job_pb2.Job:
        async with room:
            asked = job_service_pb2.GetJobRequest(job_id=job_id)
            return (await self.hubs[0].jobs.GetJob(asked, timeout=RPC_S)).job

    def _work(self, marker: str) -> tuple[str, Mapping[str, Any]]:
        kind, random = self.random.random(), self.random
        if kind < 0.45:
            waits = {"beforeS": random.uniform(0, 0.8), "afterS": random.uniform(0, 0.4)}
            return "chaos/effect.once", {"marker": marker, **waits}
        if kind < 0.9:
            steps = random.randint(1, 20)
            return "chaos/work.steps", {"marker": marker, "steps": steps, "stepS": random.uniform(0.05, 0.2)}
        return "chaos/quick.read", {"marker": marker}


async def patient(call: Any, fleet: ClientFleet) -> Any:
    """Make an RPC that may be repeated until a replica answers."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            return await _once(call, fleet)
        await asyncio.sleep(fleet.random.uniform(0, 0.2))


async def _once(call: Any, fleet: ClientFleet) -> Any:
    try:
        return await call(fleet.random.choice(fleet.hubs))
    except grpc.aio.AioRpcError as error:
        if error.code() not in AWAY:
            raise AssertionError(f"{error.code()}: {error.details()}") from error
        raise


@asynccontextmanager
async def gathered(ports: Sequence[int], random: Random) -> AsyncIterator[ClientFleet]:
    """A fleet on channels that know every replica and use those that answer."""
    address = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    assert any(name == "grpc.service_config" and "round_robin" in str(value) for name, value in OPTIONS)
    async with AsyncExitStack() as channels:
        hubs = [await channels.enter_async_context(connect(address, options=IMPATIENT)) for _ in range(_CHANNELS)]
        yield ClientFleet(hubs, random)
