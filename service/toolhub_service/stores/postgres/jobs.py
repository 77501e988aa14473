"""Jobs and their histories in PostgreSQL, shared by all hubs of one schema.

Compare-and-set, the new entry and its news are one statement. Statements of many callers form one group and so one
transaction, which locks rows in the order of their ids: two groups cannot deadlock. News are announced in commit order,
which the server's notification queue keeps. A change by this process is announced with the entry from memory, but only
when its notification arrives, so that it never overtakes another process's.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from psycopg import AsyncConnection

from toolhub_service.domain.call import Owners
from toolhub_service.domain.job import ForbiddenTransition, Job, JobCounts, JobFilter, JobNews, JobStatus, may_follow
from toolhub_service.domain.result import JobState
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import (
    decode_job,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.postgres.column_text import escape_text
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.writer import BatchWriter
from toolhub_service.stores.record_store import jobs_where

# The states that each state may follow.
_BEFORE: Final = {then: " ".join(now.value for now in JobState if may_follow(now, then)) for then in JobState}


class _Written(NamedTuple):
    """A job ready to be written."""

    job: Job
    id: str
    """The state as the column holds it."""
    key_digest: bytes | None
    """Digest of principal, tool and idempotency key; None without a key."""
    changing: tuple[Any, ...]
    """The columns that every change writes, in the statements' order."""
    lasting: tuple[Any, ...]
    """The columns that only a new job writes."""


def _encode_job(job: Job, *, new: bool = False) -> _Written:
    """Return the job as it is written. Raises ValueError for what cannot be written."""
    call, status, job_id = job.call, job.status, escape_text(job.job_id)
    key = dumps([call.principal.id, call.tool, call.idempotency_key]) if new and call.idempotency_key else b""
    key_digest = hashlib.sha256(key).digest() if key else None
    until = (status.at_unix_ms, job.deadline_unix_ms, job.expires_at_unix_ms)
    standing = (job.version, status.sequence, status.state.value, status.state.is_final, escape_text(job.runner))
    changing = (job_id, *standing, *until, encode_job_frame(job), encode_status(status))
    if not new:
        return _Written(job, job_id, None, changing, ())
    found_by = map(escape_text, (call.principal.id, call.tool, call.context.request_id, call.context.task_id))
    lasting = (job.created_at_unix_ms, *found_by, key_digest, encode_args(call.args))
    return _Written(job, job_id, key_digest, changing, lasting)


def columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


_WHOLE: Final = "SELECT jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)"

_CHANGING: Final = """job_id, version, sequence, state, is_final, runner,
        entered_at_unix_ms, deadline_unix_ms, expires_at_unix_ms, frame"""
_LASTING: Final = "created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args"
_TYPED: Final = """%b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bool[], %b::text[],
        %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[]"""

_CREATE: Final = f"""
WITH given AS (
    SELECT * FROM unnest({_TYPED},
        %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bytea[]
    ) AS given ({_CHANGING}, status, {_LASTING})),
kept AS (
    INSERT INTO jobs ({_CHANGING}, {_LASTING}) SELECT {_CHANGING}, {_LASTING} FROM given ORDER BY key_digest, job_id
    ON CONFLICT DO NOTHING
    RETURNING job_id),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status)
    SELECT job_id, sequence, status FROM given JOIN kept USING (job_id))
SELECT job_id, pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) FROM given JOIN kept USING (job_id)"""  # noqa: S608 — fixed

# Returns each changed job, and whether its entry is new; then each existing one, with its version before. The only join
# is by the key of `jobs`, so that the plan fits a group of any size.
_PUT: Final = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest({_TYPED}, %b::text[]) AS given ({_CHANGING}, status, may_follow)),
existing AS MATERIALIZED (
    SELECT given.*, jobs.version AS existing_version, jobs.sequence AS standing_sequence, jobs.state AS standing_state
    FROM given JOIN jobs ON jobs.job_id = given.job_id
    ORDER BY jobs.job_id FOR UPDATE OF jobs),
changed AS (
    UPDATE jobs SET version = s.version, sequence = s.sequence, state = s.state, is_final = s.is_final,
        runner = s.runner, entered_at_unix_ms = s.entered_at_unix_ms, deadline_unix_ms = s.deadline_unix_ms,
        expires_at_unix_ms = s.expires_at_unix_ms, frame = s.frame,
        args = CASE WHEN s.is_final THEN '{{}}'::bytea ELSE jobs.args END
    FROM existing s
    WHERE jobs.job_id = s.job_id AND s.existing_version = s.version - 1 AND (s.sequence = s.standing_sequence
        OR (s.sequence = s.standing_sequence + 1 AND s.standing_state = ANY (string_to_array(s.may_follow, ' '))))
    RETURNING s.job_id, s.sequence, s.status, s.sequence > s.standing_sequence AS is_new),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status) SELECT job_id, sequence, status FROM changed WHERE is_new)
SELECT job_id, NULL, is_new,
    CASE WHEN is_new THEN pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) END FROM changed
UNION ALL
SELECT job_id, existing_version, NULL, NULL FROM existing"""  # noqa: S608 — fixed

_EXISTING: Final = """
SELECT job_id, key_digest, jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)
WHERE job_id = ANY (%b) OR key_digest = ANY (%b)"""


_UNATTENDED: Final = f"""{_WHOLE}
WHERE NOT is_final AND state <> 'AWAITING_APPROVAL' AND (deadline_unix_ms <= %(now)s
    OR (state = 'QUEUED' AND entered_at_unix_ms < %(queued_before)s)
    OR (state IN ('RUNNING', 'CANCELLING') AND NOT EXISTS (
        SELECT FROM runners WHERE runners.runner = jobs.runner AND alive_until_unix_ms > %(now)s)))
ORDER BY state = 'QUEUED', entered_at_unix_ms, job_id LIMIT %(limit)s"""

_AWAITING: Final = f"""{_WHOLE}
WHERE NOT is_final AND state = 'AWAITING_APPROVAL' AND (entered_at_unix_ms, job_id) > (%s, %s)
ORDER BY entered_at_unix_ms, job_id LIMIT %s"""

_BEAT: Final = """
INSERT INTO runners VALUES (%s, %s)
ON CONFLICT (runner) DO UPDATE SET alive_until_unix_ms = excluded.alive_until_unix_ms"""

_FORGET: Final = """
WITH expired AS (
    SELECT job_id FROM jobs WHERE is_final AND expires_at_unix_ms BETWEEN 1 AND %(now)s
    ORDER BY expires_at_unix_ms LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
entries AS (DELETE FROM job_entries USING expired WHERE job_entries.job_id = expired.job_id),
dead AS (DELETE FROM runners WHERE alive_until_unix_ms <= %(now)s)
DELETE FROM jobs USING expired WHERE jobs.job_id = expired.job_id"""

_TALLY: Final = """
SELECT state, count(*), (array_agg(created_at_unix_ms ORDER BY entered_at_unix_ms, created_at_unix_ms))[1]
FROM jobs WHERE NOT is_final GROUP BY state"""

# A job's id and the sequence of an entry.
_Place: TypeAlias = tuple[str, int]


class PostgresJobs:
    """Implements `JobStore`. The link is closed by its owner, after the store."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._creating: BatchWriter[_Written, Job | None] = BatchWriter(
            link, self._create_all, key=lambda each: each.id, repeatable=True
        )
        self._putting: BatchWriter[_Written, bool] = BatchWriter(
            link, self._put_all, key=lambda each: each.id, repeatable=False
        )
        self._on_event: Callable[[JobNews], None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._origin = secrets.token_hex(8)
        # Entries of this process whose notification has not arrived yet.
        self._own: dict[_Place, JobStatus] = {}

    async def create(self, job: Job) -> Job | None:
        return await self._creating.put(_encode_job(job, new=True))

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        if seen is not None:
            owner = await self._link.rows("SELECT principal FROM jobs WHERE job_id = %s", escape_text(job_id))
            if not owner or not seen(owner[0][0]):
                return None
        rows = await self._link.rows(f"{_WHOLE} WHERE job_id = %s", escape_text(job_id))
        return decode_job(rows[0]) if rows else None

    async def put(self, job: Job) -> bool:
        return await self._putting.put(_encode_job(job))

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        rows = await self._link.rows(
            "SELECT status FROM job_entries WHERE job_id = %s AND sequence > %s ORDER BY sequence LIMIT %s",
            escape_text(job_id),
            after_sequence,
            max(0, limit),
        )
        return [decode_status(status) for (status,) in rows]

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        order = ("created_at_unix_ms", "job_id")
        rows, count = await self._link.page(_WHOLE, "jobs", order, jobs_where(where), after, limit)
        return readable(rows, decode_job), count

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        if alive_until_unix_ms:
            await self._link.execute(_BEAT, (escape_text(runner), alive_until_unix_ms))
        else:
            await self._link.execute("DELETE FROM runners WHERE runner = %s", (escape_text(runner),))

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        bounds = {"now": now_unix_ms, "queued_before": queued_before_unix_ms, "limit": max(0, limit)}
        return readable((await self._link.execute(_UNATTENDED, bounds))[1], decode_job)

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        at_unix_ms, job_id = after or (-1, "")
        return readable(await self._link.rows(_AWAITING, at_unix_ms, escape_text(job_id), max(0, limit)), decode_job)

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return bool(
            await self._link.rows(
                "SELECT 1 FROM runners WHERE runner = %s AND alive_until_unix_ms > %s", escape_text(runner), now_unix_ms
            )
        )

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return (await self._link.execute(_FORGET, {"now": now_unix_ms, "limit": max(0, limit)}))[0]

    async def count_jobs(self) -> JobCounts:
        rows = await self._link.rows(_TALLY)
        oldest = {state: created for state, _, created in rows}
        return JobCounts({JobState(state): count for state, count, _ in rows}, oldest.get(JobState.QUEUED.value))

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._on_event = on_event
        self._unlisten = self._link.listen("jobs", self._on_payload)

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        await self._creating.close()
        await self._putting.close()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    # Writing

    async def _create_all(
        self, connection: AsyncConnection, wanted: Sequence[_Written]
    ) -> list[Job | None | Exception]:
        expected = self._expect(wanted)
        kept: set[str] = set()
        try:
            parameters = columns([(*each.changing, *each.lasting) for each in wanted])
            notice = (self._link.channel("jobs"), self._origin)
            # Not prepared: planning for any number of jobs takes time quadratic in their number.
            cursor = await connection.execute(_CREATE, (*parameters, *notice), prepare=False)
            kept = {job_id for job_id, _ in await cursor.fetchall()}
        finally:
            self._disown(place for place in expected if place[0] not in kept)
        refused = [each for each in wanted if each.id not in kept]
        existing = await self._existing(connection, refused) if refused else {}
        return [None if each.id in kept else existing[each.id] for each in wanted]

    async def _existing(
        self, connection: AsyncConnection, refused: Sequence[_Written]
    ) -> dict[str, Job | None | Exception]:
        """Return the existing job under each one's key or id; None when it is the same job, as after a lost answer."""
        wanted = [[each.id for each in refused], [each.key_digest for each in refused if each.key_digest]]
        rows = await (await connection.execute(_EXISTING, wanted, binary=True)).fetchall()
        by_id = {job_id: decode_job(parts) for job_id, _, *parts in rows}
        answers: dict[str, Job | None | Exception] = {
            each.id: None if by_id[each.id] == each.job else by_id[each.id] for each in refused if each.id in by_id
        }
        by_key = {key: decode_job(parts) for _, key, *parts in rows if key}
        answers |= {
            each.id: by_key[each.key_digest] for each in refused if each.id not in answers and each.key_digest in by_key
        }
        again = [each for each in refused if each.id not in answers]
        if again:  # The existing job was forgotten in between.
            answers |= zip([each.id for each in again], await self._create_all(connection, again), strict=True)
        return answers

    async def _put_all(self, connection: AsyncConnection, wanted: Sequence[_Written]) -> list[bool | Exception]:
        expected = self._expect(wanted)
        changed: dict[str, bool] = {}
        try:
            parameters = columns([(*each.changing, _BEFORE[each.job.state]) for each in wanted])
            cursor = await connection.execute(_PUT, (*parameters, self._link.channel("jobs"), self._origin))
            rows = await cursor.fetchall()
            changed = {job_id: is_new for job_id, version, is_new, _ in rows if version is None}
        finally:
            self._disown(place for place in expected if not changed.get(place[0]))
        existing = {job_id: version for job_id, version, *_ in rows if version is not None}
        return [each.id in changed or _refusal(each.job, existing.get(each.id)) for each in wanted]

    # Notifications

    def _expect(self, written: Sequence[_Written]) -> list[_Place]:
        """Register entries before their notifications can arrive; return those that were not registered before.

        An entry that is registered already was committed, and stays.
        """
        if self._on_event is None:
            return []
        places = {(each.id, each.job.status.sequence): each.job.status for each in written}
        new = [place for place in places if place not in self._own]
        self._own |= {place: places[place] for place in new}
        return new

    def _disown(self, places: Iterable[_Place]) -> None:
        for place in places:
            self._own.pop(place, None)

    def _on_payload(self, payload: str | None) -> None:
        assert self._on_event is not None
        if payload is None:
            self._own.clear()
            self._on_event(JobNews(""))
        elif (news := self._news(payload)) is not None:
            self._on_event(news)

    def _news(self, payload: str) -> JobNews | None:
        """Return the news of a payload; None when no hub wrote it."""
        job_id, _, rest = payload.partition(" ")
        sequence, _, origin = rest.partition(" ")
        if not (job_id and sequence.isdecimal()):
            return None
        own = self._own.pop((job_id, int(sequence)), None) if origin == self._origin else None
        return JobNews(job_id, int(sequence), own)


def _refusal(job: Job, existing_version: int | None) -> Literal[False] | ForbiddenTransition:
    if existing_version == job.version - 1:
        return ForbiddenTransition(f"entry {job.status.sequence}, {job.state.value}, may not come next")
    return False
