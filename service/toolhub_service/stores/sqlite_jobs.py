"""Jobs in the hub's own file, shared by its processes.

A group of puts costs three statements: one reads the versions of all its jobs, compare-and-set and the state machine
are judged here inside the transaction, then the records and the new entries are written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from toolhub_service.domain.job import ForbiddenTransition, Job, JobFilter, JobNews, JobStatus, JobTally, may_follow
from toolhub_service.domain.result import JobState
from toolhub_service.stores.codec import (
    decode_args,
    decode_job_frame,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.sqlite_file import Feed, SqliteFile, Terms, insert, last_row, look_up
from toolhub_service.stores.sqlite_writer import Change

# Jobs as rows: what is written of one, and the statements that read them.
#
# A job lies in three tables: what changes (`jobs`), the arguments, written once (`job_args`), and its history
# (`job_entries`), whose latest entry is the job's status; so progress writes a few hundred bytes, however large the
# arguments, and a result is written once.

JOBS: Final = (
    "jobs (job_id, version, sequence, state, is_final, runner, created_at_unix_ms, entered_at_unix_ms, "
    "deadline_unix_ms, expires_at_unix_ms, principal, tool, idempotency_key, request_id, task_id, frame)"
)
REPLACED: Final = (
    "ON CONFLICT (job_id) DO UPDATE SET version = excluded.version, sequence = excluded.sequence, "
    "state = excluded.state, is_final = excluded.is_final, runner = excluded.runner, "
    "entered_at_unix_ms = excluded.entered_at_unix_ms, deadline_unix_ms = excluded.deadline_unix_ms, "
    "expires_at_unix_ms = excluded.expires_at_unix_ms, frame = excluded.frame"
)
ARGS: Final = "job_args (job_id, args)"
FORGET_ARGS: Final = "UPDATE job_args SET args = CAST('{}' AS BLOB) WHERE job_id IN (SELECT value FROM json_each(?))"
ENTRIES: Final = "job_entries (job_id, sequence, status)"
_WHOLE: Final = """
    SELECT jobs.frame, status, args FROM jobs
    JOIN job_entries USING (job_id, sequence) JOIN job_args USING (job_id)"""
_UNATTENDED: Final = """
    WHERE is_final = 0 AND state != 'AWAITING_APPROVAL' AND (deadline_unix_ms <= :now
    OR (state = 'QUEUED' AND entered_at_unix_ms < :queued_before)
    OR (state IN ('RUNNING', 'CANCELLING') AND NOT EXISTS (
        SELECT 1 FROM runners WHERE runners.runner = jobs.runner AND alive_until_unix_ms > :now)))
    ORDER BY state = 'QUEUED', entered_at_unix_ms, jobs.job_id LIMIT :limit"""
_AWAITING: Final = """
    WHERE is_final = 0 AND state = 'AWAITING_APPROVAL' AND (entered_at_unix_ms, jobs.job_id) > (?, ?)
    ORDER BY entered_at_unix_ms, jobs.job_id LIMIT ?"""


class Written(NamedTuple):
    """A job ready to be written."""

    job: Job
    row: tuple[Any, ...]
    """The columns of `JOBS`."""
    status: bytes
    args: bytes = b""
    """Only for a new job."""

    @property
    def entry(self) -> tuple[str, int, bytes]:
        """The columns of `ENTRIES`."""
        return self.job.job_id, self.job.status.sequence, self.status


def written(job: Job, *, new: bool = False) -> Written:
    """Raises ValueError for what cannot be written."""
    status, call = job.status, job.call
    row = (
        job.job_id,
        job.version,
        status.sequence,
        status.state.value,
        status.state.is_final,
        job.runner,
        job.created_at_unix_ms,
        status.at_unix_ms,
        job.deadline_unix_ms,
        job.expires_at_unix_ms,
        call.principal.id,
        call.tool,
        call.idempotency_key,
        call.context.request_id,
        call.context.task_id,
        encode_job_frame(job),
    )
    return Written(job, row, encode_status(status), encode_args(call.args) if new else b"")


def news_of(columns: Sequence[Any]) -> JobNews:
    """From the columns of `ENTRIES`. Raises UnreadableRecord."""
    job_id, sequence, status = columns
    return JobNews(job_id, sequence, decode_status(status))


def job_of(row: Sequence[Any]) -> Job:
    """Raises UnreadableRecord."""
    frame, status, args = row
    return decode_job_frame(frame, decode_status(status), decode_args(args))


def one(connection: sqlite3.Connection, job_id: str) -> Job | None:
    row = connection.execute(f"{_WHOLE} WHERE jobs.job_id = ?", (job_id,)).fetchone()
    return None if row is None else job_of(row)


def with_key(connection: sqlite3.Connection, scope: tuple[str, str, str]) -> Job | None:
    """The job of (principal, tool, idempotency key)."""
    where = "WHERE principal = ? AND tool = ? AND idempotency_key = ? AND idempotency_key != ''"
    row = connection.execute(f"{_WHOLE} {where}", scope).fetchone()
    return None if row is None else job_of(row)


def page(
    connection: sqlite3.Connection, where: JobFilter, after: tuple[int, str] | None, limit: int
) -> tuple[list[Job], int]:
    terms = Terms()
    terms.equals("principal", where.principal)
    terms.among("state", (state.value for state in where.states))
    terms.like("tool", where.tool)
    terms.equals("request_id", where.request_id)
    terms.equals("task_id", where.task_id)
    rows, count = terms.page(connection, _WHOLE, "jobs", ("created_at_unix_ms", "jobs.job_id"), after, limit)
    return readable(rows, job_of), count


def unattended(connection: sqlite3.Connection, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> list[Job]:
    bounds = {"now": now_unix_ms, "queued_before": queued_before_unix_ms, "limit": limit}
    return readable(connection.execute(_WHOLE + _UNATTENDED, bounds), job_of)


def awaiting(connection: sqlite3.Connection, after: tuple[int, str] | None, limit: int) -> list[Job]:
    return readable(connection.execute(_WHOLE + _AWAITING, (*(after or (-1, "")), limit)), job_of)


def tally(connection: sqlite3.Connection) -> JobTally:
    counts = connection.execute("SELECT state, count(*) FROM jobs WHERE is_final = 0 GROUP BY state").fetchall()
    oldest = connection.execute(
        "SELECT created_at_unix_ms FROM jobs WHERE is_final = 0 AND state = 'QUEUED' "
        "ORDER BY entered_at_unix_ms, created_at_unix_ms LIMIT 1"
    ).fetchone()
    return JobTally({JobState(state): count for state, count in counts}, oldest[0] if oldest else None)


_GAP = JobNews("")


class SqliteJobs:
    """Implements `JobStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._on_event: Callable[[JobNews], None] | None = None
        self._feed: Feed[JobNews] | None = None
        self._creating: Change[Written, Job | None] = Change(_create_all, self._created)
        self._putting: Change[Written, Any] = Change(_put_all, self._put_done)

    async def create(self, job: Job) -> Job | None:
        return await self._file.change(self._creating, written(job, new=True))

    async def get(self, job_id: str) -> Job | None:
        return await self._file.read(partial(one, job_id=job_id))

    async def put(self, job: Job) -> bool:
        return bool(await self._file.change(self._putting, written(job)))

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        return await self._file.read(
            lambda connection: [
                decode_status(status)
                for (status,) in connection.execute(
                    "SELECT status FROM job_entries WHERE job_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
                    (job_id, after_sequence, limit),
                )
            ]
        )

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        return await self._file.read(partial(page, where=where, after=after, limit=limit))

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        await self._file.change(_BEATING, (runner, alive_until_unix_ms))

    async def unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return await self._file.read(
            lambda connection: unattended(connection, now_unix_ms, queued_before_unix_ms, limit)
        )

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        return await self._file.read(partial(awaiting, after=after, limit=limit))

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        sql = "SELECT 1 FROM runners WHERE runner = ? AND alive_until_unix_ms > ?"
        return await self._file.read(
            lambda connection: connection.execute(sql, (runner, now_unix_ms)).fetchone() is not None
        )

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return await self._file.change(_FORGETTING, (now_unix_ms, limit))

    async def tally(self) -> JobTally:
        return await self._file.read(tally)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._on_event = on_event

    async def start(self) -> None:
        if self._on_event is not None:
            after_row = await self._file.read(last_row("job_entries"))
            columns = "job_id, sequence, status"
            self._feed = Feed("job_entries", columns, news_of, gap=_GAP, on_event=self._on_event, after_row=after_row)
            self._file.watch(self._feed)

    async def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self._file.unwatch(feed)

    def _created(self, created: Sequence[Written], existing: Sequence[Job | None]) -> None:
        if self._feed is not None:
            for (job, *_), other in zip(created, existing, strict=True):
                if other is None:
                    self._feed.added(JobNews(job.job_id, job.status.sequence, job.status))

    def _put_done(self, _: Sequence[Written], answers: Sequence[Any]) -> None:
        if self._feed is not None:
            for answer in answers:
                if isinstance(answer, JobNews):
                    self._feed.added(answer)


def _create_all(connection: sqlite3.Connection, wanted: Sequence[Written]) -> list[Job | None]:
    answers: list[Job | None] = []
    new: list[Written] = []
    keyed: dict[tuple[str, str, str], Job] = {}
    for each in wanted:
        call = each.job.call
        scope = (call.principal.id, call.tool, call.idempotency_key)
        existing = (keyed.get(scope) or with_key(connection, scope)) if call.idempotency_key else None
        answers.append(existing)
        if existing is None:
            new.append(each)
            keyed[scope] = each.job
    insert(connection, JOBS, [each.row for each in new])
    insert(connection, ARGS, [(each.job.job_id, each.args) for each in new])
    insert(connection, ENTRIES, [each.entry for each in new])
    return answers


def _put_all(connection: sqlite3.Connection, wanted: Sequence[Written]) -> list[JobNews | bool | Exception]:
    """News for a put with a new entry, True for one without, False for one that came too late."""
    existing = {
        job_id: (version, sequence, state)
        for job_id, version, sequence, state in look_up(
            connection, "jobs", "job_id, version, sequence, state", "job_id", {each.job.job_id for each in wanted}
        )
    }
    answers: list[JobNews | bool | Exception] = []
    changed: dict[str, Written] = {}
    entries: list[tuple[str, int, bytes]] = []
    for each in wanted:
        job, status = each.job, each.job.status
        answer = _judge(job, existing.get(job.job_id))
        answers.append(answer)
        if isinstance(answer, JobNews):
            entries.append(each.entry)
        if answer and not isinstance(answer, Exception):
            existing[job.job_id] = (job.version, status.sequence, status.state.value)
            changed[job.job_id] = each
    insert(connection, JOBS, [each.row for each in changed.values()], on_conflict=REPLACED)
    insert(connection, ENTRIES, entries)
    over = [job_id for job_id, each in changed.items() if each.job.state.is_final]
    if over:
        connection.execute(FORGET_ARGS, (orjson.dumps(over).decode(),))
    return answers


def _judge(job: Job, existing: tuple[int, int, str] | None) -> JobNews | bool | Exception:
    if existing is None or existing[0] != job.version - 1:
        return False
    _, sequence, state = existing
    status = job.status
    if status.sequence == sequence:
        return True
    if status.sequence != sequence + 1 or not may_follow(JobState(state), status.state):
        return ForbiddenTransition(f"{status.state.value} may not follow {state}")
    return JobNews(job.job_id, status.sequence, status)


def _beat_all(connection: sqlite3.Connection, beats: Sequence[tuple[str, int]]) -> list[None]:
    for runner, alive_until_unix_ms in beats:
        if alive_until_unix_ms:
            connection.execute("INSERT OR REPLACE INTO runners VALUES (?, ?)", (runner, alive_until_unix_ms))
        else:
            connection.execute("DELETE FROM runners WHERE runner = ?", (runner,))
    return [None] * len(beats)


def _forget_all(connection: sqlite3.Connection, bounds: Sequence[tuple[int, int]]) -> list[int]:
    return [_forget(connection, now_unix_ms, limit) for now_unix_ms, limit in bounds]


def _forget(connection: sqlite3.Connection, now_unix_ms: int, limit: int) -> int:
    expired = connection.execute(
        "SELECT job_id FROM jobs WHERE is_final = 1 AND expires_at_unix_ms BETWEEN 1 AND ? "
        "ORDER BY expires_at_unix_ms LIMIT ?",
        (now_unix_ms, limit),
    ).fetchall()
    ids = orjson.dumps([job_id for (job_id,) in expired]).decode()
    for table in ("job_entries", "job_args", "jobs"):
        connection.execute(f"DELETE FROM {table} WHERE job_id IN (SELECT value FROM json_each(?))", (ids,))  # noqa: S608 — fixed names
    connection.execute("DELETE FROM runners WHERE alive_until_unix_ms <= ?", (now_unix_ms,))
    return len(expired)


_BEATING: Change[tuple[str, int], None] = Change(_beat_all)
_FORGETTING: Change[tuple[int, int], int] = Change(_forget_all)
