"""Jobs and their histories in Redis, shared by all hubs with the same prefix: see redis_job_scripts for the keys.

Every change is one script: compare-and-set on the version, the entry appended, the indexes moved and the news told, or
nothing at all. The arguments of a call, which may be large, are written once, and a result once, in the history. How
durable an answer is, is the server's to say: see redis_link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from toolhub_service.domain.job import ForbiddenTransition, Job, JobFilter, JobNews, JobStatus, JobTally, may_follow
from toolhub_service.domain.result import FINAL_STATES, JobState
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import (
    decode_args,
    decode_job_frame,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.redis_job_scripts import AWAITING, CREATE, FORGET, PUT, READ, TALLY, UNATTENDED
from toolhub_service.stores.redis_link import Facts, RedisLink, RedisPages

_OPEN_STATES = tuple(state for state in JobState if state not in FINAL_STATES)
_BEFORE = {then: f" {' '.join(now.value for now in JobState if may_follow(now, then))} " for then in JobState}
"""The states that each state may follow, between blanks."""
_DAY_MS = 86_400_000

Parts = Sequence[bytes | None]
"""Frame, args and latest status."""


class RedisJobs:
    """Implements `JobStore`."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._pages = RedisPages(link, "job:", ("principal", "state", "tool", "request", "task"))
        self._unlisten: Callable[[], None] | None = None

    async def create(self, job: Job) -> Job | None:
        call = job.call
        key = _key_digest(call.principal.id, call.tool, call.idempotency_key) if call.idempotency_key else ""
        found_by = (job.created_at_unix_ms, call.principal.id, call.tool, call.context.request_id, call.context.task_id)
        parts = await self._link.call(
            CREATE, job.job_id, self._link.token(), key, *_change(job), encode_args(call.args), *found_by
        )
        return _job_of(parts) if parts else None

    async def get(self, job_id: str) -> Job | None:
        if ":" in job_id:  # no id that was minted has one; behind it lie keys of another kind
            return None
        (parts,) = await self._link.call(READ, job_id)
        return _job_of(parts)

    async def put(self, job: Job) -> bool:
        args = encode_args({}) if job.state.is_final else b""
        done = await self._link.call(
            PUT, job.job_id, self._link.token(), job.version - 1, *_change(job), _BEFORE[job.state], args
        )
        if done < 0:
            raise ForbiddenTransition(f"entry {job.status.sequence}, {job.state.value}, may not come next")
        return bool(done)

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        if limit <= 0:
            return []
        name = self._link.key(f"job:{job_id}:log")
        entries = await self._link.run("LRANGE", name, after_sequence, after_sequence + limit - 1)
        return [decode_status(entry) for entry in entries]

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        lists, matches = _search(where)
        ids, count = await self._pages.page(lists, matches, after=after, limit=limit)
        return _jobs_of(await self._link.call(READ, *ids) if ids else ()), count

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        alive = self._link.key("jobs:alive")
        if not alive_until_unix_ms:
            await self._link.run("ZREM", alive, runner)
            return
        await self._link.run("ZADD", alive, alive_until_unix_ms, runner)
        await self._link.run("ZREMRANGEBYSCORE", alive, "-inf", alive_until_unix_ms - _DAY_MS)

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        alive_until_unix_ms = await self._link.run("ZSCORE", self._link.key("jobs:alive"), runner)
        return alive_until_unix_ms is not None and int(alive_until_unix_ms) > now_unix_ms

    async def unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return _jobs_of(await self._link.call(UNATTENDED, now_unix_ms, queued_before_unix_ms, limit))

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        return _jobs_of(await self._link.call(AWAITING, *(after or ("", "")), limit))

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return int(await self._link.call(FORGET, now_unix_ms, limit))

    async def tally(self) -> JobTally:
        counts, oldest = await self._link.call(TALLY, *(state.value for state in _OPEN_STATES))
        by_state = {state: count for state, count in zip(_OPEN_STATES, counts, strict=True) if count}
        return JobTally(by_state, int(oldest) if oldest else None)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._unlisten = self._link.listen(b"job", lambda values: on_event(_news_of(values)))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Listening ends; the link is closed by its owner."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None


def _change(job: Job) -> tuple[bytes | str | int, ...]:
    """What every change writes, in the scripts' order."""
    status = job.status
    return (
        status.sequence,
        status.state.value,
        status.at_unix_ms,
        job.runner,
        job.deadline_unix_ms,
        job.expires_at_unix_ms,
        encode_job_frame(job),
        encode_status(status),
        job.version,
    )


def _job_of(parts: Parts) -> Job | None:
    frame, args, status = parts
    if frame is None or args is None or status is None:
        return None
    return decode_job_frame(frame, decode_status(status), decode_args(args))


def _jobs_of(all_parts: Sequence[Parts]) -> list[Job]:
    return [job for job in readable(all_parts, _job_of) if job is not None]


def _news_of(values: tuple[bytes, ...] | None) -> JobNews:
    if values is None:
        return JobNews("")
    try:
        job_id, sequence, status = values
        return JobNews(job_id.decode(), int(sequence), decode_status(status) if status else None)
    except ValueError:  # it is no such entry: whoever is concerned looks at the store itself
        return JobNews("")


def _key_digest(principal: str, tool: str, key: str) -> str:
    return hashlib.sha256(dumps([principal, tool, key])).hexdigest()


def _search(where: JobFilter) -> tuple[list[str], Callable[[str, Facts], bool] | None]:
    """Lists that hold every match, and what judges; None where the only list judges by itself."""
    wanted = (("jobs:of:", where.principal), ("jobs:request:", where.request_id), ("jobs:task:", where.task_id))
    lists = [prefix + value for prefix, value in wanted if value] or ["jobs"]
    if len(lists) == 1 and not where.states and not where.tool:
        return lists, None
    states = {state.value for state in where.states}

    def matches(_: str, facts: Facts) -> bool:
        principal, state, tool, request_id, task_id = facts
        return (
            where.principal in {"", principal}
            and (not states or state in states)
            and (not where.tool or fnmatchcase(tool, where.tool))
            and where.request_id in {"", request_id}
            and where.task_id in {"", task_id}
        )

    return lists, matches
