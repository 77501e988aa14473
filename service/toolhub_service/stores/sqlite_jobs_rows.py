"""Jobs as rows: what is written of one, and the statements that read them.

A job lies in three tables: what changes (`jobs`), the arguments, written once (`job_args`), and its history
(`job_entries`), whose latest entry is the job's status; so progress writes a few hundred bytes, however large the
arguments, and a result is written once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from toolhub_service.domain.job import Job, JobFilter, JobNews, JobTally
from toolhub_service.domain.job_state import JobState
from toolhub_service.stores.codec import (
    decode_args,
    decode_job_frame,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.sqlite_file_pages import Where

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
    terms = Where()
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
