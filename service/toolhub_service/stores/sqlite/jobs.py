"""Jobs in the hub's own file, shared by its processes.

A group of puts costs three statements: one reads the versions of all its jobs, compare-and-set and the state machine
are checked here inside the transaction, then two write the records and the new entries.

A job is stored in three tables: what changes (`jobs`), the arguments, written once (`job_args`), and its history
(`job_entries`), whose latest entry is the job's status; so progress writes a few hundred bytes, however large the
arguments, and a result is written once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from toolhub_service.domain.call import Owners
from toolhub_service.domain.job import ForbiddenTransition, Job, JobCounts, JobFilter, JobNews, JobStatus, may_follow
from toolhub_service.domain.result import JobState
from toolhub_service.stores.codec import (
    decode_job,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.record_store import job_facts, jobs_where
from toolhub_service.stores.sqlite.feed import Feed
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.pages import read_page
from toolhub_service.stores.sqlite.rows import insert, look_up
from toolhub_service.stores.sqlite.writer import Change, one_by_one

_CHANGING: Final = (
    *("version", "sequence", "state", "is_final", "runner", "entered_at_unix_ms", "deadline_unix_ms"),
    *("expires_at_unix_ms", "frame"),
)
_REPLACED: Final = "ON CONFLICT (job_id) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _CHANGING)
_ENTRIES: Final = "job_entries (job_id, sequence, status)"
_FORGET_ARGS: Final = "UPDATE job_args SET args = CAST('{}' AS BLOB) WHERE job_id IN (SELECT value FROM json_each(?))"
_WHOLE: Final = """
    SELECT jobs.frame, status, args FROM jobs
    JOIN job_entries USING (job_id, sequence) JOIN job_args USING (job_id)"""
_WITH_KEY: Final = "WHERE principal = ? AND tool = ? AND idempotency_key = ? AND idempotency_key != ''"
_HISTORY: Final = "SELECT status FROM job_entries WHERE job_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"
_UNATTENDED: Final = """
    WHERE is_final = 0 AND state != 'AWAITING_APPROVAL' AND (deadline_unix_ms <= :now
    OR (state = 'QUEUED' AND entered_at_unix_ms < :queued_before)
    OR (state IN ('RUNNING', 'CANCELLING') AND NOT EXISTS (
        SELECT 1 FROM runners WHERE runners.runner = jobs.runner AND alive_until_unix_ms > :now)))
    ORDER BY state = 'QUEUED', entered_at_unix_ms, jobs.job_id LIMIT :limit"""
_AWAITING: Final = """
    WHERE is_final = 0 AND state = 'AWAITING_APPROVAL' AND (entered_at_unix_ms, jobs.job_id) > (?, ?)
    ORDER BY entered_at_unix_ms, jobs.job_id LIMIT ?"""
_ALIVE: Final = "SELECT 1 FROM runners WHERE runner = ? AND alive_until_unix_ms > ?"


class _Written(Struct, frozen=True, gc=False):
    """A job ready to be written."""

    job: Job
    row: Mapping[str, Any]
    """The columns of `jobs`."""
    status: bytes

    @property
    def entry(self) -> tuple[str, int, bytes]:
        """The columns of `_ENTRIES`."""
        return self.job.job_id, self.job.status.sequence, self.status


def _encode_job(job: Job) -> _Written:
    """Return the job as it is written. Raises ValueError for what cannot be written."""
    status = job.status
    row = {
        "job_id": job.job_id,
        "version": job.version,
        "sequence": status.sequence,
        "is_final": status.state.is_final,
        "runner": job.runner,
        "created_at_unix_ms": job.created_at_unix_ms,
        "entered_at_unix_ms": status.at_unix_ms,
        "deadline_unix_ms": job.deadline_unix_ms,
        "expires_at_unix_ms": job.expires_at_unix_ms,
        **job_facts(job),
        "idempotency_key": job.call.idempotency_key,
        "frame": encode_job_frame(job),
    }
    return _Written(job, row, encode_status(status))


class SqliteJobs:
    """Implements `JobStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._feed: Feed[JobNews] = Feed(file, "job_entries", "job_id, sequence, status", _change_of, gap=JobNews(""))
        self._creating: Change[tuple[_Written, bytes], Job | None] = Change(_create_all, self._announce_new)
        self._putting: Change[_Written, Any] = Change(_put_all, self._put_done)

    async def create(self, job: Job) -> Job | None:
        return await self._file.change(self._creating, (_encode_job(job), encode_args(job.call.args)))

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        def find(connection: sqlite3.Connection) -> Job | None:
            if seen is not None:
                owner = connection.execute("SELECT principal FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
                if owner is None or not seen(owner[0]):
                    return None
            return _one(connection, "WHERE jobs.job_id = ?", (job_id,))

        return await self._file.read(find)

    async def put(self, job: Job) -> bool:
        return bool(await self._file.change(self._putting, _encode_job(job)))

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        bounds = (job_id, after_sequence, limit)
        return await self._file.read(
            lambda connection: [decode_status(status) for (status,) in connection.execute(_HISTORY, bounds)]
        )

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        order = ("created_at_unix_ms", "jobs.job_id")
        terms = jobs_where(where)

        def find(connection: sqlite3.Connection) -> tuple[list[Job], int]:
            rows, count = read_page(connection, terms, rows=_WHOLE, table="jobs", order=order, after=after, limit=limit)
            return readable(rows, decode_job), count

        return await self._file.read(find)

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        await self._file.change(_BEATING, (runner, alive_until_unix_ms))

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return await self._read_jobs(
            _UNATTENDED, {"now": now_unix_ms, "queued_before": queued_before_unix_ms, "limit": limit}
        )

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        return await self._read_jobs(_AWAITING, (*(after or (-1, "")), limit))

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return await self._file.read(
            lambda connection: connection.execute(_ALIVE, (runner, now_unix_ms)).fetchone() is not None
        )

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return await self._file.change(_FORGETTING, (now_unix_ms, limit))

    async def count_jobs(self) -> JobCounts:
        return await self._file.read(_count)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._feed.listen(on_event)

    async def start(self) -> None:
        await self._feed.start()

    async def close(self) -> None:
        self._feed.close()

    async def _read_jobs(self, rest: str, parameters: Any) -> list[Job]:
        return await self._file.read(
            lambda connection: readable(connection.execute(_WHOLE + rest, parameters), decode_job)
        )

    def _announce_new(self, created: Sequence[tuple[_Written, bytes]], existing: Sequence[Job | None]) -> None:
        new = [written.job for (written, _), other in zip(created, existing, strict=True) if other is None]
        self._feed.note_own_rows([JobNews(job.job_id, job.status.sequence, job.status) for job in new])

    def _put_done(self, _: Sequence[_Written], answers: Sequence[Any]) -> None:
        self._feed.note_own_rows([answer for answer in answers if isinstance(answer, JobNews)])


def _change_of(columns: Sequence[Any]) -> JobNews:
    """Return the news of the columns of `_ENTRIES`. Raises UnreadableRecord."""
    job_id, sequence, status = columns
    return JobNews(job_id, sequence, decode_status(status))


def _one(connection: sqlite3.Connection, rest: str, parameters: Sequence[str]) -> Job | None:
    row = connection.execute(f"{_WHOLE} {rest}", parameters).fetchone()
    return None if row is None else decode_job(row)


def _count(connection: sqlite3.Connection) -> JobCounts:
    counts = connection.execute("SELECT state, count(*) FROM jobs WHERE is_final = 0 GROUP BY state").fetchall()
    oldest = connection.execute(
        "SELECT created_at_unix_ms FROM jobs WHERE is_final = 0 AND state = 'QUEUED' "
        "ORDER BY entered_at_unix_ms, created_at_unix_ms LIMIT 1"
    ).fetchone()
    return JobCounts({JobState(state): count for state, count in counts}, oldest[0] if oldest else None)


def _create_all(connection: sqlite3.Connection, wanted: Sequence[tuple[_Written, bytes]]) -> list[Job | None]:
    answers: list[Job | None] = []
    new: list[tuple[_Written, bytes]] = []
    # Within one group: two submissions with one key may be committed together, when the table knows neither yet.
    keyed: dict[tuple[str, str, str], Job] = {}
    for each in wanted:
        job = each[0].job
        scope = (job.call.principal.id, job.call.tool, job.call.idempotency_key)
        existing = (keyed.get(scope) or _one(connection, _WITH_KEY, scope)) if job.call.idempotency_key else None
        answers.append(existing)
        if existing is None:
            new.append(each)
            keyed[scope] = job
    _insert_jobs(connection, [written for written, _ in new])
    insert(connection, "job_args (job_id, args)", [(written.job.job_id, args) for written, args in new])
    insert(connection, _ENTRIES, [written.entry for written, _ in new])
    return answers


def _put_all(connection: sqlite3.Connection, wanted: Sequence[_Written]) -> list[JobNews | bool | Exception]:
    """For each put return its news if it has a new entry, True if it has none, False if another change came first."""
    existing = {
        job_id: (version, sequence, state)
        for job_id, version, sequence, state in look_up(
            connection, "jobs", "job_id, version, sequence, state", "job_id", {each.job.job_id for each in wanted}
        )
    }
    answers: list[JobNews | bool | Exception] = []
    changed: dict[str, _Written] = {}
    entries: list[tuple[str, int, bytes]] = []
    for each in wanted:
        job, status = each.job, each.job.status
        answer = _check_change(job, existing.get(job.job_id))
        answers.append(answer)
        if isinstance(answer, JobNews):
            entries.append(each.entry)
        if answer and not isinstance(answer, Exception):
            # The next change of the group may build on this one, which no query would find.
            existing[job.job_id] = (job.version, status.sequence, status.state.value)
            changed[job.job_id] = each
    _insert_jobs(connection, list(changed.values()), on_conflict=_REPLACED)
    insert(connection, _ENTRIES, entries)
    # Arguments may be large, and a finished job is never run again.
    over = [job_id for job_id, each in changed.items() if each.job.state.is_final]
    if over:
        connection.execute(_FORGET_ARGS, (orjson.dumps(over).decode(),))
    return answers


def _insert_jobs(connection: sqlite3.Connection, written: Sequence[_Written], on_conflict: str = "") -> None:
    if written:
        into = f"jobs ({', '.join(written[0].row)})"
        insert(connection, into, [[*each.row.values()] for each in written], on_conflict=on_conflict)


def _check_change(job: Job, existing: tuple[int, int, str] | None) -> JobNews | bool | Exception:
    if existing is None or existing[0] != job.version - 1:
        return False
    _, sequence, state = existing
    status = job.status
    if status.sequence == sequence:
        return True
    if status.sequence != sequence + 1 or not may_follow(JobState(state), status.state):
        return ForbiddenTransition(f"{status.state.value} may not follow {state}")
    return JobNews(job.job_id, status.sequence, status)


def _beat(connection: sqlite3.Connection, beat: tuple[str, int]) -> None:
    runner, alive_until_unix_ms = beat
    if alive_until_unix_ms:
        connection.execute("INSERT OR REPLACE INTO runners VALUES (?, ?)", (runner, alive_until_unix_ms))
    else:
        connection.execute("DELETE FROM runners WHERE runner = ?", (runner,))


def _forget(connection: sqlite3.Connection, bounds: tuple[int, int]) -> int:
    now_unix_ms, limit = bounds
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


_BEATING: Change[tuple[str, int], None] = Change(one_by_one(_beat))
_FORGETTING: Change[tuple[int, int], int] = Change(one_by_one(_forget))
