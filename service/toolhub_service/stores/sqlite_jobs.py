"""Jobs in the hub's own file, shared by its processes.

A group of puts costs three statements: one reads the versions of all its jobs, compare-and-set and the state machine
are judged here inside the transaction, then the records and the new entries are written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson

from toolhub_service.domain.job import Job, JobFilter, JobNews, JobStatus, JobTally
from toolhub_service.domain.job_machine import ForbiddenTransition, may_follow
from toolhub_service.domain.job_state import JobState
from toolhub_service.stores import sqlite_jobs_rows as rows
from toolhub_service.stores.codec import decode_status
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_file_feed import Feed, last_row
from toolhub_service.stores.sqlite_file_rows import insert, look_up
from toolhub_service.stores.sqlite_file_writer import Change
from toolhub_service.stores.sqlite_jobs_rows import Written, written

_GAP = JobNews("")


class SqliteJobs:
    """Implements `JobStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._heard: Callable[[JobNews], None] | None = None
        self._feed: Feed[JobNews] | None = None
        self._creating: Change[Written, Job | None] = Change(_create_all, self._created)
        self._putting: Change[Written, Any] = Change(_put_all, self._put_done)

    async def create(self, job: Job) -> Job | None:
        return await self._file.change(self._creating, written(job, new=True))

    async def get(self, job_id: str) -> Job | None:
        return await self._file.read(partial(rows.one, job_id=job_id))

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
        return await self._file.read(partial(rows.page, where=where, after=after, limit=limit))

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        await self._file.change(_BEATING, (runner, alive_until_unix_ms))

    async def unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return await self._file.read(
            lambda connection: rows.unattended(connection, now_unix_ms, queued_before_unix_ms, limit)
        )

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        return await self._file.read(partial(rows.awaiting, after=after, limit=limit))

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        sql = "SELECT 1 FROM runners WHERE runner = ? AND alive_until_unix_ms > ?"
        return await self._file.read(
            lambda connection: connection.execute(sql, (runner, now_unix_ms)).fetchone() is not None
        )

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return await self._file.change(_FORGETTING, (now_unix_ms, limit))

    async def tally(self) -> JobTally:
        return await self._file.read(rows.tally)

    def listen(self, heard: Callable[[JobNews], None]) -> None:
        self._heard = heard

    async def start(self) -> None:
        if self._heard is not None:
            after_row = await self._file.read(last_row("job_entries"))
            columns = "job_id, sequence, status"
            self._feed = Feed("job_entries", columns, rows.news_of, gap=_GAP, heard=self._heard, after_row=after_row)
            self._file.watch(self._feed)

    async def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self._file.unwatch(feed)

    def _created(self, created: Sequence[Written], standing: Sequence[Job | None]) -> None:
        if self._feed is not None:
            for (job, *_), other in zip(created, standing, strict=True):
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
        standing = (keyed.get(scope) or rows.with_key(connection, scope)) if call.idempotency_key else None
        answers.append(standing)
        if standing is None:
            new.append(each)
            keyed[scope] = each.job
    insert(connection, rows.JOBS, [each.row for each in new])
    insert(connection, rows.ARGS, [(each.job.job_id, each.args) for each in new])
    insert(connection, rows.ENTRIES, [each.entry for each in new])
    return answers


def _put_all(connection: sqlite3.Connection, wanted: Sequence[Written]) -> list[JobNews | bool | Exception]:
    """News for a put with a new entry, True for one without, False for one that came too late."""
    standing = {
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
        answer = _judge(job, standing.get(job.job_id))
        answers.append(answer)
        if isinstance(answer, JobNews):
            entries.append(each.entry)
        if answer and not isinstance(answer, Exception):
            standing[job.job_id] = (job.version, status.sequence, status.state.value)
            changed[job.job_id] = each
    insert(connection, rows.JOBS, [each.row for each in changed.values()], on_conflict=rows.REPLACED)
    insert(connection, rows.ENTRIES, entries)
    over = [job_id for job_id, each in changed.items() if each.job.state.is_final]
    if over:
        connection.execute(rows.FORGET_ARGS, (orjson.dumps(over).decode(),))
    return answers


def _judge(job: Job, standing: tuple[int, int, str] | None) -> JobNews | bool | Exception:
    if standing is None or standing[0] != job.version - 1:
        return False
    _, sequence, state = standing
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
