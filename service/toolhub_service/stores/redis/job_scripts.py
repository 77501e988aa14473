"""Lua scripts of jobs, and how a job is stored in Redis.

`job:<id>` is a hash: frame and args (the record without its status), version, by (the token of the last change), seq,
state, at (of the latest entry), fed (its number in the feed), and what the record is found by. `job:<id>:log` is the
list of its entries, the one with sequence n at n - 1. Sorted sets find jobs:

    jobs, jobs:of:<principal>, jobs:request:<id>, jobs:task:<id>    all, by creation
    jobs:state:<state>, jobs:runner:<runner>                        not final, by the time of the latest entry
    jobs:deadline, jobs:expiry                                      not final nor AWAITING_APPROVAL; final

`jobs:runners` is the set of runners that hold some, `jobs:alive` has them by the end of their last beat, and
`jobs:key:<digest>` names the job that has an idempotency key.
"""
# The functions' bodies are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from toolhub_service.domain.result import FINAL_STATES
from toolhub_service.stores.redis.script import ScriptRunner, redis_script

JobParts: TypeAlias = Sequence[Any]
"""Bytes of a stored job: its frame, latest status and arguments; None for a part that is gone."""
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


@redis_script(
    _PLACES,
    _READ,
    """
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
async def create_job(
    link: ScriptRunner,
    *,
    id: str,
    token: str,
    key: str,
    version: int,
    seq: int,
    state: str,
    at: int,
    runner: str,
    deadline: int,
    expires: int,
    frame: bytes,
    status: bytes,
    args: bytes,
    created: int,
    principal: str,
    tool: str,
    request: str,
    task: str,
) -> JobParts | None:
    """Store a new job; return None when done, or the existing job that has its id or idempotency key.

    `key`: the digest of the idempotency key, or empty. Times are Unix milliseconds.
    """


@redis_script(
    _PLACES,
    """
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
async def put_job(
    link: ScriptRunner,
    *,
    id: str,
    token: str,
    before: int,
    version: int,
    seq: int,
    state: str,
    at: int,
    runner: str,
    deadline: int,
    expires: int,
    frame: bytes,
    status: bytes,
    may_follow: str,
    args: bytes,
) -> int:
    """Change a job whose version is `before`.

    Returns 1 when done, 0 when another change came first, -1 when the entry may not follow: `may_follow` lists the
    states that `state` may follow, each between blanks. Empty `args` stay as they are. Times are Unix milliseconds.
    """


@redis_script(
    _READ,
    """
local found = {}
for at = ids_first, #ARGV do
  found[at - ids_first + 1] = read(ARGV[at])
end
return found
""",
)
async def read_jobs(link: ScriptRunner, *, ids: Sequence[str]) -> Sequence[JobParts]:
    """Return the parts of each job."""


@redis_script("return call('HGET', P .. 'job:' .. id, 'principal')")
async def read_owner(link: ScriptRunner, *, id: str) -> bytes | None:
    """Return the principal whose job it is; None when there is no such job."""


@redis_script(
    _READ,
    """
local now, most = tonumber(now_unix_ms), tonumber(limit)
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
add_all(call('ZRANGEBYSCORE', queued, '-inf', '(' .. queued_before_unix_ms, 'WITHSCORES', 'LIMIT', 0, most), 'QUEUED')
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
async def find_unattended_jobs(
    link: ScriptRunner, *, now_unix_ms: int, queued_before_unix_ms: int, limit: int
) -> Sequence[JobParts]:
    """Return jobs that need a runner: those queued for long, those of dead runners, those past their deadline."""


@redis_script(
    _READ,
    """
local list, start = P .. 'jobs:state:AWAITING_APPROVAL', 0
if at ~= '' then
  start = call('ZCOUNT', list, '-inf', '(' .. at)
  for _, same in ipairs(call('ZRANGEBYSCORE', list, at, at)) do
    if same > id then break end
    start = start + 1
  end
end
return read_all(call('ZRANGE', list, start, start + limit - 1))
""",
)
async def find_awaiting_jobs(link: ScriptRunner, *, at: int | str, id: str, limit: int) -> Sequence[JobParts]:
    """Return jobs that await approval, oldest first; `at` and `id` are those of the cursor, or empty."""


@redis_script(
    """
local counts = {}
for at = states_first, #ARGV do
  counts[at - states_first + 1] = call('ZCARD', P .. 'jobs:state:' .. ARGV[at])
end
local oldest = call('ZRANGE', P .. 'jobs:state:QUEUED', 0, 0)[1]
return {counts, oldest and call('HGET', P .. 'job:' .. oldest, 'created') or ''}
"""
)
async def count_open_jobs(link: ScriptRunner, *, states: Sequence[str]) -> tuple[list[int], bytes]:
    """Return a count for each state, and when the job was created that is QUEUED longest; empty without one."""


@redis_script(
    _PLACES,
    """
local last_fed = 0
local expired = call('ZRANGEBYSCORE', P .. 'jobs:expiry', '-inf', now_unix_ms, 'LIMIT', 0, limit)
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
async def forget_jobs(link: ScriptRunner, *, now_unix_ms: int, limit: int) -> int:
    """Remove expired jobs; return how many there were."""
