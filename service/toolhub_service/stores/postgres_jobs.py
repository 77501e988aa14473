"""Jobs and their histories in PostgreSQL, shared by all hubs of one schema.

Compare-and-set, the new entry and its news are one statement; statements of many callers are one group. News are told
in the order of commits, which the server's queue of notifications keeps; what this process wrote itself is told with
the entry at hand, but only when its notification comes back, so that it never overtakes another process's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, LiteralString, TypeAlias

from psycopg import AsyncConnection

from toolhub_service.domain.job import ForbiddenTransition, Job, JobFilter, JobNews, JobStatus, JobTally
from toolhub_service.domain.result import JobState
from toolhub_service.stores import postgres_jobs_sql as sql
from toolhub_service.stores.codec import decode_status, readable
from toolhub_service.stores.postgres_jobs_sql import Written, columns, job_of, terms_of, text, written
from toolhub_service.stores.postgres_link import BatchWriter, PostgresFeed, PostgresLink

_GLOB: Final = "*?["
_Place: TypeAlias = tuple[str, int]
"""A job's id, and the sequence of an entry."""


class PostgresJobs:
    """Implements `JobStore`. The link is closed by its owner, after the store."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._creating: BatchWriter[Written, Job | None] = BatchWriter(
            link, self._create_all, key=lambda each: each.id, repeatable=True
        )
        self._putting: BatchWriter[Written, bool] = BatchWriter(
            link, self._put_all, key=lambda each: each.id, repeatable=False
        )
        self._on_event: Callable[[JobNews], None] | None = None
        self._feed: PostgresFeed | None = None
        self._origin = secrets.token_hex(8)
        self._own: dict[_Place, JobStatus] = {}
        """Entries of this process whose notification has not come back yet."""

    async def create(self, job: Job) -> Job | None:
        return await self._creating.put(written(job, new=True))

    async def get(self, job_id: str) -> Job | None:
        rows = await self._rows(f"{sql.WHOLE} WHERE job_id = %s", text(job_id))
        return job_of(rows[0]) if rows else None

    async def put(self, job: Job) -> bool:
        return await self._putting.put(written(job))

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        rows = await self._rows(sql.HISTORY, text(job_id), after_sequence, max(0, limit))
        return [decode_status(status) for (status,) in rows]

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        terms, parameters = terms_of(where, await self._tools(where.tool))
        ((count,),) = await self._rows(f"SELECT count(*) FROM jobs WHERE {terms}", *parameters)  # noqa: S608 — columns
        if after is not None:
            terms += " AND (created_at_unix_ms, job_id) < (%s, %s)"
            parameters += (after[0], text(after[1]))
        order: LiteralString = "ORDER BY created_at_unix_ms DESC, job_id DESC LIMIT %s"
        rows = await self._rows(f"{sql.WHOLE} WHERE {terms} {order}", *parameters, max(0, limit))
        return readable(rows, job_of), count

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        if alive_until_unix_ms:
            await self._run(sql.BEAT, (text(runner), alive_until_unix_ms))
        else:
            await self._run(sql.LEFT, (text(runner),))

    async def unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        bounds = {"now": now_unix_ms, "queued_before": queued_before_unix_ms, "limit": max(0, limit)}
        return readable((await self._run(sql.UNATTENDED, bounds))[1], job_of)

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        at_unix_ms, job_id = after or (-1, "")
        return readable(await self._rows(sql.AWAITING, at_unix_ms, text(job_id), max(0, limit)), job_of)

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return bool(await self._rows(sql.IS_ALIVE, text(runner), now_unix_ms))

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return (await self._run(sql.FORGET, {"now": now_unix_ms, "limit": max(0, limit)}))[0]

    async def tally(self) -> JobTally:
        rows = await self._rows(sql.TALLY)
        oldest = {state: created for state, _, created in rows}
        return JobTally({JobState(state): count for state, count, _ in rows}, oldest.get(JobState.QUEUED.value))

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._on_event = on_event

    async def start(self) -> None:
        await self._link.start()
        if self._on_event is not None and self._feed is None:
            self._feed = await self._link.listen("jobs", self._on_payload)

    async def close(self) -> None:
        await self._creating.close()
        await self._putting.close()
        if self._feed is not None:
            await self._feed.close()
            self._feed = None

    # Writing

    async def _create_all(self, connection: AsyncConnection, wanted: Sequence[Written]) -> list[Job | None | Exception]:
        expected = self._expect(wanted)
        kept: set[str] = set()
        try:
            parameters = columns([(*each.changing, *each.lasting) for each in wanted])
            told = (self._link.channel("jobs"), self._origin)
            # Not prepared: a plan made for any number of jobs would take the square of the time for many.
            cursor = await connection.execute(sql.CREATE, (*parameters, *told), prepare=False)
            kept = {job_id for job_id, _ in await cursor.fetchall()}
        finally:
            self._disown(place for place in expected if place[0] not in kept)
        refused = [each for each in wanted if each.id not in kept]
        existing = await self._existing(connection, refused) if refused else {}
        return [None if each.id in kept else existing[each.id] for each in wanted]

    async def _existing(
        self, connection: AsyncConnection, refused: Sequence[Written]
    ) -> dict[str, Job | None | Exception]:
        """The job that stands under each one's key or id; None for one that stands itself, when an answer was lost."""
        wanted = [[each.id for each in refused], [each.key_digest for each in refused if each.key_digest]]
        rows = await (await connection.execute(sql.EXISTING, wanted, binary=True)).fetchall()
        by_id = {job_id: job_of(parts) for job_id, _, *parts in rows}
        answers: dict[str, Job | None | Exception] = {
            each.id: None if by_id[each.id] == each.job else by_id[each.id] for each in refused if each.id in by_id
        }
        by_key = {key: job_of(parts) for _, key, *parts in rows if key}
        answers |= {
            each.id: by_key[each.key_digest] for each in refused if each.id not in answers and each.key_digest in by_key
        }
        again = [each for each in refused if each.id not in answers]
        if again:  # What stood was forgotten in between.
            answers |= zip([each.id for each in again], await self._create_all(connection, again), strict=True)
        return answers

    async def _put_all(self, connection: AsyncConnection, wanted: Sequence[Written]) -> list[bool | Exception]:
        expected = self._expect(wanted)
        changed: dict[str, bool] = {}
        try:
            parameters = columns([(*each.changing, each.before) for each in wanted])
            cursor = await connection.execute(sql.PUT, (*parameters, self._link.channel("jobs"), self._origin))
            rows = await cursor.fetchall()
            changed = {job_id: is_new for job_id, version, is_new, _ in rows if version is None}
        finally:
            self._disown(place for place in expected if not changed.get(place[0]))
        existing = {job_id: version for job_id, version, *_ in rows if version is not None}
        return [each.id in changed or _refusal(each.job, existing.get(each.id)) for each in wanted]

    # Telling

    def _expect(self, written: Sequence[Written]) -> list[_Place]:
        """What of this may come back, before it can. What is expected already is there to stay: it was committed."""
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
        """None for what no hub has told."""
        job_id, _, rest = payload.partition(" ")
        sequence, _, origin = rest.partition(" ")
        if not (job_id and sequence.isdecimal()):
            return None
        own = self._own.pop((job_id, int(sequence)), None) if origin == self._origin else None
        return JobNews(job_id, int(sequence), own)

    # Reading

    async def _tools(self, pattern: str) -> list[str] | None:
        """Those that a glob matches; None when it is none."""
        if not any(sign in pattern for sign in _GLOB):
            return None
        return [tool for (tool,) in await self._rows(sql.TOOLS) if fnmatchcase(tool, pattern)]

    async def _rows(self, statement: LiteralString, *parameters: Any) -> list[Any]:
        return (await self._run(statement, parameters))[1]

    async def _run(
        self, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> tuple[int, list[Any]]:
        """How many rows it changed or found, and those that it found."""

        async def work(connection: AsyncConnection) -> tuple[int, list[Any]]:
            cursor = await connection.execute(statement, parameters, binary=True)
            return cursor.rowcount, await cursor.fetchall() if cursor.description else []

        return await self._link.run(work, repeatable=True)


def _refusal(job: Job, existing_version: int | None) -> Literal[False] | ForbiddenTransition:
    if existing_version == job.version - 1:
        return ForbiddenTransition(f"entry {job.status.sequence}, {job.state.value}, may not come next")
    return False
