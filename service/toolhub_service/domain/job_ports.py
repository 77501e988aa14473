"""Ports of jobs: where they are stored, who delivers them, and work that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from toolhub_service.domain.call import Call, GrantedCall, Owners, Principal
from toolhub_service.domain.job import Job, JobCounts, JobFilter, JobNews, JobStatus, RemoteMark
from toolhub_service.domain.result import Outcome, Progress


class JobStore(Protocol):
    """Jobs and their histories: the truth about jobs, in a store that others may share.

    A change is stored only when `version` is the next one, so that of two writers one must read again. When a method
    has returned, its change is durable. Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def create(self, job: Job) -> Job | None:
        """Store a new job and the first entry of its history.

        Return None when that was done, else the existing job, if not deleted yet: one with the same id, or of the same
        principal and tool with the same `call.idempotency_key` (not empty).
        """

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        """Return a job; None when there is none, or none whose principal is `seen`: of such a job nothing but its
        principal is read, so that the answer takes as long as for an unknown id."""

    async def put(self, job: Job) -> bool:
        """Replace the record whose version is one less, and append `job.status` when its sequence is new.

        `job.call.args` are those of `create` and need not be written again; when the job is final they are deleted.

        Return False when another change came first, or the job is gone. Raises ForbiddenTransition (a defect of the
        caller).
        """

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        """Return entries with a higher sequence, in order; at most `limit`. Empty for an unknown job."""

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        """Return (jobs, number that match) in (created_at_unix_ms, job_id) order, newest first, strictly after the
        cursor."""

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        """Record that the runner's process is alive until then, unless it beats again; 0: it has shut down."""

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        """Return at most `limit` jobs that need attention: RUNNING and CANCELLING ones first, then QUEUED, in each
        group the longest waiting first, so that no backlog hides the work of dead runners.

        These are RUNNING and CANCELLING jobs whose runner is not alive, QUEUED ones whose latest entry is from before
        `queued_before_unix_ms`, and jobs in these states whose deadline has passed.
        """

    # With a cursor: these jobs stay while people think, and a sweep would otherwise see the same first ones forever.
    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        """Return at most `limit` jobs that are AWAITING_APPROVAL, in (status.at_unix_ms, job_id) order after the
        cursor."""

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        """Return whether the runner's last beat is still valid."""

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        """Delete finished jobs that have expired, at most `limit`, and return how many."""

    async def count_jobs(self) -> JobCounts: ...

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        """Call `on_event` with every entry appended from now on, by this process or any other, in order within a job.

        Called once, before `start`. One reader serves the whole process; `on_event` is called on its event loop and
        must not wait. An entry may come twice; after a gap (a lost connection) there is an event without a job_id.
        """

    async def start(self) -> None:
        """Open files or connections and begin to listen. Raises ToolFailure or HubFailure for the operator."""

    async def close(self) -> None: ...


class JobEngine(Protocol):
    """Decides where a job runs. The store is the truth; an engine only delivers."""

    async def start(self, run: Callable[[str], Awaitable[None]]) -> None:
        """Begin to deliver: call `run(job_id)` in this process, for jobs of any process as the engine decides.

        `run` raises only cancellation, and handles a job that is delivered twice.
        """

    async def enqueue(self, job_id: str, tenant: str = "") -> None:
        """Deliver the job, at least once. Enqueueing one that is already waiting here changes nothing.

        Jobs of several tenants are delivered in turn; those of one tenant, and all without a tenant, in order of
        arrival.
        """

    def park(self, job_id: str) -> AbstractAsyncContextManager[None]:
        """In the body, the job's delivery waits for other jobs and occupies no place; leaving may wait until there is a
        place again. Does nothing for a job that has no delivery here."""

    @property
    def running(self) -> int:
        """Deliveries under way in this process."""

    @property
    def waiting(self) -> int:
        """Jobs that wait for delivery in this process."""

    async def close(self, grace_s: float) -> None:
        """Accept no more jobs, let running ones end for `grace_s`, then cancel them and wait until they have ended."""


class RunningJobs(Protocol):
    """The jobs that this process runs, by job_id, for the pipeline and the adapters that run them.

    Each method raises ToolFailure when another process runs the job, or the store cannot be reached.
    """

    async def begins(self, job_id: str) -> None:
        """Store, before an effect, that it follows: from here on an unsafe job is never run again."""

    async def asks(self, job_id: str) -> None:
        """Store that the run has ended with a question and nothing happens before its answer, so that the job may run
        again.

        The mark of work that the remote side never accepted is deleted.
        """

    async def mark(self, job_id: str) -> RemoteMark | None:
        """Return what is known of the remote side; None before anything was sent."""

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        """Store the mark; it is durable when this returns."""

    def suspends(self, job_id: str, approval_id: str) -> None:
        """The run ends here because a call that it makes waits for a person; it runs again after the decision."""

    def continues_elsewhere(self, job_id: str) -> bool:
        """Return whether this run is being stopped and another one continues it, so that what it began must not be
        cancelled."""

    def stopping(self, job_id: str) -> asyncio.Event:
        """Return an event that is set when the job is to be cancelled.

        A caller of this must end by itself once the event is set, and is not cancelled then: for work whose end a
        remote side must confirm.
        """


class RemoteJob(Protocol):
    """Work that runs elsewhere, under an id of its own: a workflow, a queue prompt, an MCP task.

    Driven by adapters/remote.py, which stores marks, looks up after ambiguity and decides what is LOST.
    """

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        """Start the work on the remote side, under `mark.key` where it accepts an id or a key; return the accepted
        mark.

        Raises ToolFailure when it refused and nothing runs, QuestionAsked when a person must answer first and nothing
        runs, and RemoteUnclear when the outcome is unknown.
        """

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        """Look up a start of unknown outcome: return the accepted mark, or None when the remote side certainly does not
        have it.

        Raises RemoteUnclear when it cannot tell.
        """

    def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        """Yield progress until the remote side has ended the job in any way; reconnects by itself.

        Raises RemoteUnclear when the remote side no longer knows it, ToolFailure when following is refused, and
        QuestionAsked when it waits for a person: a later run follows it with the reply.
        """

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        """Ask the remote side to stop; return False if it cannot. `follow` ends when the work has."""

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        """Return the result of an ended job; reconnects by itself.

        Raises ToolFailure with the remote side's own error (CANCELLED when it was stopped), and RemoteUnclear when it
        does not return the result.
        """


class JobService(Protocol):
    """What a principal may do with its own jobs; for the servicer and for core/job.*."""

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Return a job. Raises ToolFailure NOT_FOUND when unknown, deleted or another principal's."""

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        """As `JobStore.page`, for what the principal may see: its own jobs, for operators and auditors all."""

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        """Return the job as CANCELLING, or with its final status when it had ended or never began. Raises as `get`."""


class JobObserver(Protocol):
    """Metrics, traces and logs of jobs: notified of events; cannot influence them."""

    def on_accept(self, job: Job) -> None:
        """A job was stored."""

    def on_change(self, before: Job, job: Job) -> None:
        """This process has moved a job to another state, and the store has it."""

    def on_takeover(self, job: Job) -> None:
        """This process has taken over a job whose runner had died."""

    def running(self, job: Job) -> AbstractContextManager[object]:
        """Wrap one run; in the body a span is current that links to the submitter's."""

    def on_counts(self, counts: JobCounts) -> None:
        """Periodic report of the amount of work in the store."""

    def watching(self, watchers: int) -> None:
        """The number of watchers that this process now has."""

    def on_problem(self, job_id: str, problem: BaseException) -> None:
        """Something failed that will be retried, or a defect; nobody else learns of it. Empty id: not about a single
        job."""


class JobAcceptance(Protocol):
    """Step 6 of a submission: the job is stored, and runs later."""

    async def accept(self, call: Call, granted: GrantedCall) -> tuple[Job, bool]:
        """Return the stored job of `call`, and whether it already existed under the call's idempotency key.

        Raises ToolFailure IDEMPOTENCY_CONFLICT, RATE_LIMITED when too many jobs are open, TOOL_UNAVAILABLE.
        """


class JobWatching(Protocol):
    """Watches of jobs."""

    def watch(self, job: Job, after_sequence: int, *, from_first: bool = False) -> AsyncGenerator[JobStatus, None]:
        """Yield entries of its history until the final one, as JobService.WatchJob defines; `job` was just read.

        Raises HubFailure UNAVAILABLE when this process shuts down.
        """

    def watch_many(
        self, jobs: Sequence[Job], where: JobFilter | None, after_sequences: Mapping[str, int]
    ) -> AsyncGenerator[JobStatus, None]:
        """Yield entries of the histories of `jobs`, and with `where` of all matching open ones, future ones included,
        as JobService.WatchJobs defines; `jobs` were just read. Raises as `watch`."""
