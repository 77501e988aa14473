"""A process that runs one remote job against the scripted job server, in tests of what it does when things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fakes.clock import FixedRandomness
from tests.fakes.http_remote_job import HttpRemoteJob, remote_tool
from tests.fakes.job_server import JobServer
from tests.fakes.outcomes import outcome_of
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks, KillableRemote, Life, ProcessDied
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller, PollTerms
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.result import Chunk, Outcome, Progress
from toolhub_service.domain.tool import Annotations

JOB_ID = "job-1"
SOON = PollTerms(first_s=0.001, longest_s=0.004, per_s=1e6)
BRISK = RemoteTerms(
    look_up_timeout_s=0.02, absent_for_s=0.002, stop_timeout_s=2.0, pause_first_s=0.001, pause_max_s=0.004
)
WITHIN_S = 60.0
"""Longer than anything here takes: what hangs fails by name."""


class LoopClock:
    """`Clock` over the running loop, which a test can put forward."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time() + self.skipped_s

    def unix_ms(self) -> int:
        return 1_700_000_000_000


@dataclass
class RecordingSink:
    """`EventSink` whose reports can be waited for."""

    progresses: list[Progress] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)
        self._news.set()

    def chunk(self, chunk: Chunk) -> None: ...

    async def until_reported(self, words: str, within_s: float = WITHIN_S) -> None:
        async with asyncio.timeout(within_s):
            while not any(words in progress.message for progress in self.progresses):
                self._news.clear()
                await self._news.wait()


@dataclass
class RemoteJobHarness:
    """One process. Another one over the same `kept` marks is its successor."""

    server: JobServer
    client: httpx.AsyncClient
    kept: KeptMarks = field(default_factory=KeptMarks)
    life: Life = field(default_factory=Life)
    terms: RemoteTerms = BRISK
    sink: RecordingSink = field(default_factory=RecordingSink)

    def __post_init__(self) -> None:
        self.clock = LoopClock()
        self.running = FakeRunningJobs(self.kept, self.life)
        self.remote = HttpRemoteJob(self.client, self.server.url, Poller(FixedRandomness(), SOON))
        killable = KillableRemote(self.remote, self.life)
        self.executor = RemoteExecutor(killable, self.running, self.clock, FixedRandomness(), self.terms)

    def successor(self, life: Life | None = None) -> RemoteJobHarness:
        return RemoteJobHarness(self.server, self.client, self.kept, life or Life(), self.terms)

    def begin(self, **options: Any) -> asyncio.Task[Outcome]:
        """The run as a task; keywords as those of `remote_call`."""
        call = remote_call(self.server.url, **options)
        self.life.task = asyncio.create_task(self.executor.execute(call, self.sink))
        return self.life.task

    async def run(self, **options: Any) -> Outcome | ToolError | None:
        """What it came to; None: the process ended before."""
        async with asyncio.timeout(WITHIN_S):
            task = self.begin(**options)
            with contextlib.suppress(ProcessDied, asyncio.CancelledError):
                return await outcome_of(task)  # type: ignore[no-any-return]
            assert self.life.is_over
            return None


def remote_call(
    url: str,
    work: dict[str, Any] | None = None,
    *,
    deadline_s: float = float("inf"),
    job_id: str = JOB_ID,
    **annotations: bool,
) -> GrantedCall:
    """The call of a job; `work` is what the remote side shall do."""
    call = granted(
        remote_tool(url=url, annotations=Annotations(**annotations)), work or {"result": "made"}, deadline_s=deadline_s
    )
    planned = call.planned._replace(call=call.call._replace(job_id=job_id))
    return call._replace(planned=planned)


@asynccontextmanager
async def a_client() -> AsyncIterator[httpx.AsyncClient]:
    # A test has hundreds of servers, each on a port of its own: their idle connections are looked at by every request.
    limits = httpx.Limits(max_keepalive_connections=2)
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=10.0, limits=limits) as client:
        yield client
