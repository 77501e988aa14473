"""Jobs and their histories in Redis, shared by all hubs with the same prefix.

Every change is one script: compare-and-set on the version, append the entry, move the indexes and publish the news, or
nothing at all. A call's arguments, which may be large, are written once, and so is a result, in the history. The
server's configuration decides how durable a change is: see redis_link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

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
from toolhub_service.stores.redis.link import RedisLink, RedisScript
from toolhub_service.stores.redis.pages import Facts, RedisPages

# `job:<id>` is a hash: frame and args (the record without its status), version, by (the token of the last change), seq,
# state, at (of the latest entry), fed (its number in the feed), and what the record is found by. `job:<id>:log` is the
# list of its entries, the one with sequence n at n - 1. Sorted sets find jobs:
#
#     jobs, jobs:of:<principal>, jobs:request:<id>, jobs:task:<id>    all, by creation
#     jobs:state:<state>, jobs:runner:<runner>                        not final, by the time of the latest entry
#     jobs:deadline, jobs:expiry                                      not final nor AWAITING_APPROVAL; final
#
# `jobs:runners` is the set of runners that hold some, `jobs:alive` has them by the end of their last beat, and
# `jobs:key:<digest>` names the job that has an idempotency key.

IN_FEED_BYTES = 4_096
"""Larger entries are published without their content."""

_PLACES = f"""
local FINAL = {{{", ".join(f"{state.value} = true" for state in FINAL_STATES)}}}
local HELD = {{RUNNING = true, CANCELLING = true}}

local function place(id, state, at, runner, deadline, expires)
  if FINAL[state] then
    if tonumber(expires) > 0 then call('ZADD', P .. 'jobs:expiry', expires, id) end
    return
  end
  call('ZADD', P .. 'jobs:state:' .. state, at, id)
  if state ~= 'AWAITING_APPROVAL' then call('ZADD', P .. 'jobs:deadline', deadline, id) end
  if HELD[state] then
    call('ZADD', P .. 'jobs:runner:' .. runner, at, id)
    call('SADD', P .. 'jobs:runners', runner)
  end
end

local function displace(id, state, runner)
  if FINAL[state] then
    call('ZREM', P .. 'jobs:expiry', id)
    return
  end
  call('ZREM', P .. 'jobs:state:' .. state, id)
  call('ZREM', P .. 'jobs:deadline', id)
  if HELD[state] then
    call('ZREM', P .. 'jobs:runner:' .. runner, id)
    if call('EXISTS', P .. 'jobs:runner:' .. runner) == 0 then call('SREM', P .. 'jobs:runners', runner) end
  end
end

local function lists(principal, request, task)
  local names = {{'jobs', 'jobs:of:' .. principal}}
  if request ~= '' then names[#names + 1] = 'jobs:request:' .. request end
  if task ~= '' then names[#names + 1] = 'jobs:task:' .. task end
  return names
end

local function append(id, seq, status)
  call('RPUSH', P .. 'job:' .. id .. ':log', status)
  local fed = tell('job', id, seq, #status <= {IN_FEED_BYTES} and status or '')
  call('HSET', P .. 'job:' .. id, 'fed', fed)
end
"""

_READ = """
local function read(id)
  local parts = call('HMGET', P .. 'job:' .. id, 'frame', 'args')
  return {parts[1], call('LINDEX', P .. 'job:' .. id .. ':log', -1), parts[2]}
end

local function read_all(ids)
  local jobs = {}
  for at, id in ipairs(ids) do
    jobs[at] = read(id)
  end
  return jobs
end
"""

CREATE = RedisScript(
    _PLACES,
    _READ,
    """
local id, token, key, seq, state, at, runner, deadline, expires, frame, status = unpack(ARGV, 1, 11)
local version, args, created, principal, tool, request, task = unpack(ARGV, 12)
local job = P .. 'job:' .. id
local existing = key ~= '' and call('GET', P .. 'jobs:key:' .. key) or call('EXISTS', job) == 1 and id
if existing then return (existing ~= id or call('HGET', job, 'by') ~= token) and read(existing) end
call('HSET', job, 'by', token, 'version', version, 'seq', seq, 'state', state, 'at', at, 'runner', runner,
  'deadline', deadline, 'frame', frame, 'args', args, 'key', key, 'created', created, 'principal', principal,
  'tool', tool, 'request', request, 'task', task)
if key ~= '' then call('SET', P .. 'jobs:key:' .. key, id) end
for _, name in ipairs(lists(principal, request, task)) do
  call('ZADD', P .. name, created, id)
end
place(id, state, at, runner, deadline, expires)
append(id, seq, status)
return false
""",
)
"""nil when done, or the parts of the existing job"""

PUT = RedisScript(
    _PLACES,
    """
local id, token, before, seq, state, at, runner, deadline, expires, frame, status = unpack(ARGV, 1, 11)
local version, may_follow, args = ARGV[12], ARGV[13], ARGV[14]
local job = P .. 'job:' .. id
local now = call('HMGET', job, 'version', 'by', 'seq', 'state', 'runner')
if now[1] ~= before then return now[2] == token and 1 or 0 end
local is_new = tonumber(seq) == now[3] + 1
if is_new and not string.find(may_follow, ' ' .. now[4] .. ' ', 1, true) or not is_new and seq ~= now[3] then
  return -1
end
if now[4] ~= state or now[5] ~= runner then displace(id, now[4], now[5]) end
call('HSET', job, 'by', token, 'version', version, 'seq', seq, 'state', state, 'at', at, 'runner', runner,
  'deadline', deadline, 'frame', frame)
if args ~= '' then call('HSET', job, 'args', args) end
place(id, state, at, runner, deadline, expires)
if is_new then append(id, seq, status) end
return 1
""",
)
"""1 when done, 0 when another change came first, -1 when the entry may not follow"""

READ = RedisScript(
    _READ,
    "return read_all(ARGV)",
)
"""ids → the parts of each, nil ones for those that are gone"""

OWNER = RedisScript("return call('HGET', P .. 'job:' .. ARGV[1], 'principal')")
"""id → the principal, nil when there is no such job"""

UNATTENDED = RedisScript(
    _READ,
    """
local now, queued_before, most = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local found, waiting = {}, {}
local function add(id, at, state)
  if not found[id] then
    found[id] = true
    waiting[#waiting + 1] = {state == 'QUEUED' and 1 or 0, tonumber(at), id}
  end
end
local function add_all(pairs_, state)
  for at = 1, #pairs_, 2 do
    add(pairs_[at], pairs_[at + 1], state)
  end
end
local queued = P .. 'jobs:state:QUEUED'
add_all(call('ZRANGEBYSCORE', queued, '-inf', '(' .. queued_before, 'WITHSCORES', 'LIMIT', 0, most), 'QUEUED')
for _, runner in ipairs(call('SMEMBERS', P .. 'jobs:runners')) do
  local alive_until = call('ZSCORE', P .. 'jobs:alive', runner)
  if not alive_until or tonumber(alive_until) <= now then
    add_all(call('ZRANGE', P .. 'jobs:runner:' .. runner, 0, most - 1, 'WITHSCORES'))
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'jobs:deadline', '-inf', now, 'LIMIT', 0, most)) do
  local job = call('HMGET', P .. 'job:' .. id, 'at', 'state')
  add(id, job[1], job[2])
end
table.sort(waiting, function(one, other)
  if one[1] ~= other[1] then return one[1] < other[1] end
  if one[2] ~= other[2] then return one[2] < other[2] end
  return one[3] < other[3]
end)
local ids = {}
for at = 1, math.min(most, #waiting) do
  ids[at] = waiting[at][3]
end
return read_all(ids)
""",
)
"""now, queued before, limit → parts of jobs"""

AWAITING = RedisScript(
    _READ,
    """
local at, id, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local list, start = P .. 'jobs:state:AWAITING_APPROVAL', 0
if at ~= '' then
  start = call('ZCOUNT', list, '-inf', '(' .. at)
  for _, same in ipairs(call('ZRANGEBYSCORE', list, at, at)) do
    if same > id then break end
    start = start + 1
  end
end
return read_all(call('ZRANGE', list, start, start + most - 1))
""",
)
"""time and id of the cursor or empty, limit → parts of jobs"""

TALLY = RedisScript(
    """
local counts = {}
for at, state in ipairs(ARGV) do
  counts[at] = call('ZCARD', P .. 'jobs:state:' .. state)
end
local oldest = call('ZRANGE', P .. 'jobs:state:QUEUED', 0, 0)[1]
return {counts, oldest and call('HGET', P .. 'job:' .. oldest, 'created') or ''}
"""
)
"""states → a count for each, and the creation time of the job that is QUEUED longest, or nothing"""

FORGET = RedisScript(
    _PLACES,
    """
local last_fed = 0
local expired = call('ZRANGEBYSCORE', P .. 'jobs:expiry', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(expired) do
  local job = P .. 'job:' .. id
  local found = call('HMGET', job, 'state', 'runner', 'principal', 'request', 'task', 'key', 'fed')
  displace(id, found[1], found[2])
  for _, name in ipairs(lists(found[3], found[4], found[5])) do
    call('ZREM', P .. name, id)
  end
  if found[6] ~= '' then call('DEL', P .. 'jobs:key:' .. found[6]) end
  last_fed = math.max(last_fed, tonumber(found[7]))
  call('DEL', job, job .. ':log')
end
trim(last_fed)
return #expired
""",
)
"""now, limit → how many"""


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
        key = hashlib.sha256(dumps(scope)).hexdigest() if call.idempotency_key else ""
        found_by = (job.created_at_unix_ms, call.principal.id, call.tool, call.context.request_id, call.context.task_id)
        parts = await self._link.call(
            CREATE, job.job_id, self._link.token(), key, *_change(job), encode_args(call.args), *found_by
        )
        return decode_job(parts) if parts else None

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        if ":" in job_id:  # no minted id has one; behind it are keys of another kind
            return None
        if seen is not None:
            owner = await self._link.call(OWNER, job_id)
            if owner is None or not seen(owner.decode("utf-8", "replace")):
                return None
        (parts,) = await self._link.call(READ, job_id)
        return None if None in parts else decode_job(parts)

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
        ids, count = await self._pages.page(jobs_where(where), after, limit)
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

    async def count_jobs(self) -> JobCounts:
        counts, oldest = await self._link.call(TALLY, *(state.value for state in _OPEN_STATES))
        by_state = {state: count for state, count in zip(_OPEN_STATES, counts, strict=True) if count}
        return JobCounts(by_state, int(oldest) if oldest else None)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._listening.callback(self._link.listen(b"job", lambda values: on_event(_change_of(values))))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Stop listening; the link is closed by its owner."""
        self._listening.close()


def _change(job: Job) -> tuple[bytes | str | int, ...]:
    """Return what every change writes, in the scripts' order."""
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


def _jobs_of(found: Sequence[Sequence[Any]]) -> list[Job]:
    """Return the jobs, without those that are gone."""
    return readable([parts for parts in found if None not in parts], decode_job)


def _change_of(values: tuple[bytes, ...] | None) -> JobNews:
    if values is None:
        return JobNews("")
    try:
        job_id, sequence, status = values
        return JobNews(job_id.decode(), int(sequence), decode_status(status) if status else None)
    except ValueError:  # it is no such entry: listeners read the store
        return JobNews("")


def _facts(_: str, facts: Facts) -> Row:
    return dict(zip(("principal", "state", "tool", "request_id", "task_id"), facts, strict=True))
