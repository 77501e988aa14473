"""What the job store says to PostgreSQL: a group of changes is one statement, and so one transaction.

Rows are locked in the order of their ids, so that two groups never wait for one another in a circle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from toolhub_service.domain.job import Job, JobFilter, may_follow
from toolhub_service.domain.result import JobState
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import (
    decode_args,
    decode_job_frame,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
)

# Jobs as rows of PostgreSQL, and filters as terms over them.

_BEFORE: Final = {then: " ".join(now.value for now in JobState if may_follow(now, then)) for then in JobState}
"""The states that each state may follow."""


class Written(NamedTuple):
    """A job ready to be written."""

    job: Job
    changing: tuple[Any, ...]
    """The columns that every change writes, in the statements' order."""
    lasting: tuple[Any, ...] = ()
    """Those that only a new job has; the last but one is the digest of its key."""

    @property
    def id(self) -> str:
        """As the columns hold it."""
        return text(self.job.job_id)

    @property
    def before(self) -> str:
        return _BEFORE[self.job.state]

    @property
    def key_digest(self) -> bytes | None:
        digest: bytes | None = self.lasting[-2]
        return digest


def written(job: Job, *, new: bool = False) -> Written:
    """Raises ValueError for what cannot be written."""
    status = job.status
    changing = (
        text(job.job_id),
        job.version,
        status.sequence,
        status.state.value,
        status.state.is_final,
        text(job.runner),
        status.at_unix_ms,
        job.deadline_unix_ms,
        job.expires_at_unix_ms,
        encode_job_frame(job),
        encode_status(status),
    )
    return Written(job, changing, _lasting(job) if new else ())


def _lasting(job: Job) -> tuple[Any, ...]:
    call = job.call
    found_by = (call.principal.id, call.tool, call.context.request_id, call.context.task_id)
    return (job.created_at_unix_ms, *map(text, found_by), _key_digest(job), encode_args(call.args))


def _key_digest(job: Job) -> bytes | None:
    call = job.call
    if not call.idempotency_key:
        return None
    return hashlib.sha256(dumps([call.principal.id, call.tool, call.idempotency_key])).digest()


def columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def job_of(row: Sequence[Any]) -> Job:
    """Raises UnreadableRecord."""
    frame, status, args = row
    return decode_job_frame(frame, decode_status(status), decode_args(args))


def text(value: str) -> str:
    """As a column holds it, each text in a way of its own: PostgreSQL's text has no NUL."""
    return value.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in value or "\0" in value else value


def terms_of(where: JobFilter, tools: Sequence[str] | None) -> tuple[LiteralString, list[Any]]:
    """The filter as a WHERE clause with its parameters. `tools`: what its glob matches; None where it has none."""
    terms: LiteralString = "TRUE"
    parameters: list[Any] = []
    wanted: tuple[tuple[LiteralString, str], ...] = (
        ("principal", where.principal),
        ("tool", where.tool if tools is None else ""),
        ("request_id", where.request_id),
        ("task_id", where.task_id),
    )
    for column, value in wanted:
        if value:
            terms += f" AND {column} = %s"
            parameters.append(text(value))
    if tools is not None:
        terms += " AND tool = ANY (%s)"
        parameters.append(list(tools))
    if where.states:
        terms += " AND state = ANY (%s)"
        parameters.append([state.value for state in where.states])
    return terms, parameters


WHOLE: Final = "SELECT jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)"

CREATE: Final = """
WITH given AS (
    SELECT * FROM unnest(
        %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bool[], %b::text[], %b::bigint[], %b::bigint[],
        %b::bigint[], %b::bytea[], %b::bytea[],
        %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bytea[]
    ) AS given (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, status,
        created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args)),
kept AS (
    INSERT INTO jobs (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args)
    SELECT job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args
    FROM given ORDER BY key_digest, job_id
    ON CONFLICT DO NOTHING
    RETURNING job_id),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status)
    SELECT job_id, sequence, status FROM given JOIN kept USING (job_id))
SELECT job_id, pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) FROM given JOIN kept USING (job_id)"""

PUT: Final = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bool[], %b::text[], %b::bigint[], %b::bigint[],
        %b::bigint[], %b::bytea[], %b::bytea[], %b::text[]
    ) AS given (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, status, may_follow)),
existing AS MATERIALIZED (
    SELECT given.*, jobs.version AS existing_version, jobs.sequence AS standing_sequence, jobs.state AS standing_state
    FROM given JOIN jobs ON jobs.job_id = given.job_id
    ORDER BY jobs.job_id FOR UPDATE OF jobs),
changed AS (
    UPDATE jobs SET version = s.version, sequence = s.sequence, state = s.state, is_final = s.is_final,
        runner = s.runner, entered_at_unix_ms = s.entered_at_unix_ms, deadline_unix_ms = s.deadline_unix_ms,
        expires_at_unix_ms = s.expires_at_unix_ms, frame = s.frame,
        args = CASE WHEN s.is_final THEN '{}'::bytea ELSE jobs.args END
    FROM existing s
    WHERE jobs.job_id = s.job_id AND s.existing_version = s.version - 1 AND (s.sequence = s.standing_sequence
        OR (s.sequence = s.standing_sequence + 1 AND s.standing_state = ANY (string_to_array(s.may_follow, ' '))))
    RETURNING s.job_id, s.sequence, s.status, s.sequence > s.standing_sequence AS is_new),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status) SELECT job_id, sequence, status FROM changed WHERE is_new)
SELECT job_id, NULL, is_new,
    CASE WHEN is_new THEN pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) END FROM changed
UNION ALL
SELECT job_id, existing_version, NULL, NULL FROM existing"""
"""Each job that was changed, and whether its entry is new; then each that stood, with its version before.

No join but by the key of `jobs`, so that the plan fits a group of any size.
"""

EXISTING: Final = """
SELECT job_id, key_digest, jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)
WHERE job_id = ANY (%b) OR key_digest = ANY (%b)"""

HISTORY: Final = "SELECT status FROM job_entries WHERE job_id = %s AND sequence > %s ORDER BY sequence LIMIT %s"

UNATTENDED: Final = f"""{WHOLE}
WHERE NOT is_final AND state <> 'AWAITING_APPROVAL' AND (deadline_unix_ms <= %(now)s
    OR (state = 'QUEUED' AND entered_at_unix_ms < %(queued_before)s)
    OR (state IN ('RUNNING', 'CANCELLING') AND NOT EXISTS (
        SELECT FROM runners WHERE runners.runner = jobs.runner AND alive_until_unix_ms > %(now)s)))
ORDER BY state = 'QUEUED', entered_at_unix_ms, job_id LIMIT %(limit)s"""

AWAITING: Final = f"""{WHOLE}
WHERE NOT is_final AND state = 'AWAITING_APPROVAL' AND (entered_at_unix_ms, job_id) > (%s, %s)
ORDER BY entered_at_unix_ms, job_id LIMIT %s"""

BEAT: Final = """
INSERT INTO runners VALUES (%s, %s)
ON CONFLICT (runner) DO UPDATE SET alive_until_unix_ms = excluded.alive_until_unix_ms"""
LEFT: Final = "DELETE FROM runners WHERE runner = %s"
IS_ALIVE: Final = "SELECT 1 FROM runners WHERE runner = %s AND alive_until_unix_ms > %s"

FORGET: Final = """
WITH expired AS (
    SELECT job_id FROM jobs WHERE is_final AND expires_at_unix_ms BETWEEN 1 AND %(now)s
    ORDER BY expires_at_unix_ms LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
entries AS (DELETE FROM job_entries USING expired WHERE job_entries.job_id = expired.job_id),
dead AS (DELETE FROM runners WHERE alive_until_unix_ms <= %(now)s)
DELETE FROM jobs USING expired WHERE jobs.job_id = expired.job_id"""

TALLY: Final = """
SELECT state, count(*), (array_agg(created_at_unix_ms ORDER BY entered_at_unix_ms, created_at_unix_ms))[1]
FROM jobs WHERE NOT is_final GROUP BY state"""

TOOLS: Final = """
WITH RECURSIVE tools AS (
    (SELECT tool FROM jobs ORDER BY tool LIMIT 1)
    UNION ALL
    SELECT (SELECT jobs.tool FROM jobs WHERE jobs.tool > tools.tool ORDER BY jobs.tool LIMIT 1)
    FROM tools WHERE tools.tool IS NOT NULL)
SELECT tool FROM tools WHERE tool IS NOT NULL"""
"""From tool to tool along the index, instead of over all jobs."""
