"""Ports of long work: where jobs are kept, who delivers them, and what runs somewhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from toolhub_service.domain.call import Call, GrantedCall, Principal
from toolhub_service.domain.job import Job, JobFilter, JobNews, JobStatus, JobTally, RemoteMark
from toolhub_service.domain.result import Outcome, Progress


class JobStore(Protocol):
    """Jobs and their histories: the truth about long work, whoever else shares the store.

    A change is kept only when `version` is the next one, so that of two writers one has to read again. What a
    method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def create(self, job: Job) -> Job | None:
        """Keep a new job and the first entry of its history.

        None when that was done, else the job that stands already: the one of the same principal and tool with the
        same `call.idempotency_key` (not empty), or of the same id, for as long as it has not been forgotten.
        """

    async def get(self, job_id: str) -> Job | None: ...

    async def put(self, job: Job) -> bool:
        """Replace the record whose version is one less, and append `job.status` when its sequence is new.

        `job.call.args` are those of `create` and need not be written again, until the job is final: then they are
        forgotten.

        False when another change came first, or the job is gone. Raises ForbiddenTransition (a defect of the caller).
        """

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        """Entries with a higher sequence, in order; at most `limit`. Empty for an unknown job."""

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        """Jobs in (created_at_unix_ms, job_id) order, newest first, strictly after the cursor, and how many match."""

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        """The runner's process lives, and will have died unless it beats again until then. 0: it has left."""

    async def unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        """Jobs that somebody must look after, at most `limit`: RUNNING and CANCELLING ones first, then QUEUED, in each
        group the longest waiting first, so that no backlog hides the work of the dead.

        RUNNING and CANCELLING ones whose runner is not alive, QUEUED ones whose latest entry is from before
        `queued_before_unix_ms`, and those of either whose deadline has passed.
        """

    # By a cursor: these jobs stay as they are while people think, and a sweep would see the same first ones for ever.
    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        """Jobs that are AWAITING_APPROVAL, at most `limit`, in (status.at_unix_ms, job_id) order after the cursor."""

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        """Whether the runner's last beat still holds."""

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        """Remove finished jobs that have expired, at most `limit`; how many were removed."""

    async def tally(self) -> JobTally: ...

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        """Tell `on_event` of every entry appended from now on, by this process or any other, in order within a job.

        Called once, before `start`. One reader serves the whole process; `on_event` is called on its event loop and
        must not wait. An entry may come twice; after a gap (a lost connection) comes news without a job_id.
        """

    async def start(self) -> None:
        """Open files or connections and begin to listen. Raises ToolFailure or HubFailure for the operator."""

    async def close(self) -> None: ...


class JobEngine(Protocol):
    """Who runs a job, and where. The store is the truth; an engine only delivers."""

    async def start(self, run: Callable[[str], Awaitable[None]]) -> None:
        """Begin to deliver: `run(job_id)` in this process, for jobs that any process enqueued as the engine decides.

        `run` never raises but for cancellation, and copes with a job that is delivered twice.
        """

    async def enqueue(self, job_id: str, tenant: str = "") -> None:
        """Have the job delivered, at least once. Enqueueing one that is already waiting here changes nothing.

        Jobs of several tenants are delivered in turn; those of one, and all where none is named, in the order in which
        they came."""

    def parked(self, job_id: str) -> AbstractAsyncContextManager[None]:
        """While inside, the delivery of the job only waits, for other jobs, and takes no other's room; to leave may
        take until there is room again. Does nothing for a job of which none is under way here."""

    @property
    def running(self) -> int:
        """Deliveries under way in this process."""

    @property
    def waiting(self) -> int:
        """Jobs that wait in this process for their delivery."""

    async def close(self, grace_s: float) -> None:
        """Take no more, let running ones end for `grace_s`, then cancel them and wait until they have."""


class RunningJobs(Protocol):
    """The jobs that this process runs, for the pipeline and the adapters that run them; all by job_id.

    Each raises ToolFailure when the job is no longer this process's to run, or the store cannot be reached.
    """

    async def begins(self, job_id: str) -> None:
        """The effect is next: durable before it happens, for from here on an unsafe job is never run again."""

    async def asks(self, job_id: str) -> None:
        """The run has ended with a question and nothing happens before its answer: it may be run again, durably.

        A mark of what the remote side never took is forgotten."""

    async def mark(self, job_id: str) -> RemoteMark | None:
        """What is known of the remote side; None before anything was sent."""

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        """Durable when it returns."""

    def suspends(self, job_id: str, approval_id: str) -> None:
        """The run ends here, for a call that it makes waits for a person; it runs again after the decision."""

    def continues_elsewhere(self, job_id: str) -> bool:
        """Whether this run is being cut off and another one continues it, so that what it began must not be stopped."""

    def stopping(self, job_id: str) -> asyncio.Event:
        """Set when the job is to be cancelled.

        Who asks for it promises to end by itself once it is set, and is not cancelled then: for work that a remote
        side must confirm to have stopped.
        """


class RemoteJob(Protocol):
    """Work that runs somewhere else, under an id of its own: a workflow, a queue prompt, an MCP task.

    Driven by adapters/remote.py, which saves marks, looks up after ambiguity and decides what is LOST.
    """

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        """Ask the remote side to begin, under `mark.key` where it takes an id or a key; the accepted mark.

        Raises ToolFailure when it refused and nothing runs, QuestionAsked when a person must answer first and nothing
        runs, and RemoteUnclear when nobody can tell.
        """

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        """Look a start of unknown outcome up: the accepted mark, or None when the remote side certainly has it not.

        Raises RemoteUnclear when it cannot tell.
        """

    def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        """Progress until the remote side has ended the job, however; survives lost connections by itself.

        Raises RemoteUnclear when the remote side no longer knows it, ToolFailure when following is refused, and
        QuestionAsked when it waits for a person: a later run follows it with the reply.
        """

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        """Ask the remote side to stop. False: it has no way to. `follow` tells when it has ended."""

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        """What an ended job has brought; survives lost connections by itself.

        Raises ToolFailure as the remote side's own verdict (CANCELLED when it was stopped), and RemoteUnclear when it
        does not hand the result out.
        """


class JobService(Protocol):
    """What a principal may ask about its own jobs; for the servicer and for core/job.*."""

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Raises ToolFailure NOT_FOUND when unknown, forgotten or somebody else's."""

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        """As `JobStore.page`, of what the principal may see: its own, for operators and auditors all."""

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        """The job with CANCELLING, or with its final status when it was over or never began. Raises as `get`."""


class JobObserver(Protocol):
    """Metrics, traces and logs of long work: called with what happens, never asked."""

    def accepted(self, job: Job) -> None:
        """A job was put into the store."""

    def changed(self, before: Job, job: Job) -> None:
        """This process moved a job to another state, and the store has it."""

    def taken_over(self, job: Job) -> None:
        """A job whose runner had died is in this process's hands now."""

    def running(self, job: Job) -> AbstractContextManager[object]:
        """Wraps one run: a span is current inside that links to the submitter's."""

    def tallied(self, tally: JobTally) -> None:
        """How much work there is in the store, from time to time."""

    def watching(self, watchers: int) -> None:
        """How many watchers this process has now."""

    def troubled(self, job_id: str, problem: BaseException) -> None:
        """Something failed that will be tried again, or a defect; nobody else learns of it. Empty id: no job of its
        own."""


class JobAcceptance(Protocol):
    """What step 6 of a submission is: the job is kept, and runs later."""

    async def accept(self, call: Call, granted: GrantedCall) -> tuple[Job, bool]:
        """The durable job of `call`, and whether it stood already under the call's idempotency key.

        Raises ToolFailure IDEMPOTENCY_CONFLICT, RATE_LIMITED when too many jobs are open, TOOL_UNAVAILABLE.
        """


class JobWatching(Protocol):
    """How one follows a job."""

    def watch(self, job: Job, after_sequence: int, *, from_first: bool = False) -> AsyncGenerator[JobStatus, None]:
        """Entries of its history until the final one, as JobService.WatchJob says. `job` was just read.

        Raises HubFailure UNAVAILABLE when this process leaves.
        """

    def watch_many(
        self, jobs: Sequence[Job], where: JobFilter | None, after_sequences: Mapping[str, int]
    ) -> AsyncGenerator[JobStatus, None]:
        """Entries of the histories of `jobs`, and with `where` of all open ones that it matches, those to come
        included, as JobService.WatchJobs says. `jobs` were just read. Raises as `watch`."""
