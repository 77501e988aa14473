"""Jobs and their histories in Redis, shared by all hubs with the same prefix.

Every change is one script: compare-and-set on the version, append the entry, move the indexes and publish the news, or
nothing at all. A call's arguments, which may be large, are written once, and so is a result, in the history. The
server's configuration decides how durable a change is: see `RedisLink`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypedDict

from toolhub_service.domain.call import Owners
from toolhub_service.domain.job import ForbiddenTransition, Job, JobCounts, JobFilter, JobNews, JobStatus, may_follow
from toolhub_service.domain.result import FINAL_STATES, JobState
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import (
    decode_job,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
    readable,
)
from toolhub_service.stores.record_store import Row, jobs_where
from toolhub_service.stores.redis.job_scripts import (
    JobParts,
    count_open_jobs,
    create_job,
    find_awaiting_jobs,
    find_unattended_jobs,
    forget_jobs,
    put_job,
    read_jobs,
    read_owner,
)
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.pages import Facts, RedisPages

_OPEN_STATES = tuple(state for state in JobState if state not in FINAL_STATES)
# The states that each state may follow, separated by blanks.
_BEFORE = {then: f" {' '.join(now.value for now in JobState if may_follow(now, then))} " for then in JobState}
_DAY_MS = 86_400_000

_LISTS = {"": "jobs", "principal": "jobs:of:", "request_id": "jobs:request:", "task_id": "jobs:task:"}


class RedisJobs:
    """Implements `JobStore`."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._pages = RedisPages(link, "job:", ("principal", "state", "tool", "request", "task"), _LISTS, _facts)
        self._listening = ExitStack()

    async def create(self, job: Job) -> Job | None:
        call = job.call
        scope = [call.principal.id, call.tool, call.idempotency_key]
        parts = await create_job(
            self._link,
            id=job.job_id,
            token=self._link.token(),
            key=hashlib.sha256(dumps(scope)).hexdigest() if call.idempotency_key else "",
            args=encode_args(call.args),
            created=job.created_at_unix_ms,
            principal=call.principal.id,
            tool=call.tool,
            request=call.context.request_id,
            task=call.context.task_id,
            **_change_of_job(job),
        )
        return decode_job(parts) if parts else None

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        if ":" in job_id:  # no minted id has one; behind it are keys of another kind
            return None
        if seen is not None:
            owner = await read_owner(self._link, id=job_id)
            if owner is None or not seen(owner.decode("utf-8", "replace")):
                return None
        (parts,) = await read_jobs(self._link, ids=[job_id])
        return None if None in parts else decode_job(parts)

    async def put(self, job: Job) -> bool:
        done = await put_job(
            self._link,
            id=job.job_id,
            token=self._link.token(),
            before=job.version - 1,
            may_follow=_BEFORE[job.state],
            args=encode_args({}) if job.state.is_final else b"",
            **_change_of_job(job),
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
        ids, count = await self._pages.page(jobs_where(where), after, limit)
        return _decode_jobs(await read_jobs(self._link, ids=ids) if ids else ()), count

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

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return _decode_jobs(
            await find_unattended_jobs(
                self._link, now_unix_ms=now_unix_ms, queued_before_unix_ms=queued_before_unix_ms, limit=limit
            )
        )

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        at, id_ = after or ("", "")
        return _decode_jobs(await find_awaiting_jobs(self._link, at=at, id=id_, limit=limit))

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return await forget_jobs(self._link, now_unix_ms=now_unix_ms, limit=limit)

    async def count_jobs(self) -> JobCounts:
        counts, oldest = await count_open_jobs(self._link, states=[state.value for state in _OPEN_STATES])
        by_state = {state: count for state, count in zip(_OPEN_STATES, counts, strict=True) if count}
        return JobCounts(by_state, int(oldest) if oldest else None)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._listening.callback(self._link.listen(b"job", lambda values: on_event(_read_news(values))))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Stop listening; the link is closed by its owner."""
        self._listening.close()


class _JobChange(TypedDict):
    """What every change writes, by the scripts' parameters."""

    version: int
    seq: int
    state: str
    at: int
    runner: str
    deadline: int
    expires: int
    frame: bytes
    status: bytes


def _change_of_job(job: Job) -> _JobChange:
    status = job.status
    return {
        "version": job.version,
        "seq": status.sequence,
        "state": status.state.value,
        "at": status.at_unix_ms,
        "runner": job.runner,
        "deadline": job.deadline_unix_ms,
        "expires": job.expires_at_unix_ms,
        "frame": encode_job_frame(job),
        "status": encode_status(status),
    }


def _decode_jobs(found: Sequence[JobParts]) -> list[Job]:
    """Return the jobs, without those that are gone."""
    return readable([parts for parts in found if None not in parts], decode_job)


def _read_news(values: tuple[bytes, ...] | None) -> JobNews:
    if values is None:
        return JobNews("")
    try:
        job_id, sequence, status = values
        return JobNews(job_id.decode(), int(sequence), decode_status(status) if status else None)
    except ValueError:  # it is no such entry: listeners read the store
        return JobNews("")


def _facts(_: str, facts: Facts) -> Row:
    return dict(zip(("principal", "state", "tool", "request_id", "task_id"), facts, strict=True))
