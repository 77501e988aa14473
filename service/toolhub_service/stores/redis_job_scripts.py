"""What becomes of jobs, as scripts.

`job:<id>` is a hash: frame and args (the record without its status), version, by (the token of the last change), seq,
state, at (of the latest entry), fed (its number in the feed), and what the record is found by. `job:<id>:log` is the
list of its entries, the one with sequence n at n - 1. Sorted sets find jobs:

    jobs, jobs:of:<principal>, jobs:request:<id>, jobs:task:<id>    all, by creation
    jobs:state:<state>, jobs:runner:<runner>                        not final, by the time of the latest entry
    jobs:deadline, jobs:expiry                                      not final nor AWAITING_APPROVAL; final

`jobs:runners` is the set of runners that hold some, `jobs:alive` has them by the end of their last beat, and
`jobs:key:<digest>` names the job that has an idempotency key.
"""

from __future__ import annotations

from toolhub_service.domain.result import FINAL_STATES
from toolhub_service.stores.redis_link import RedisScript

IN_FEED_BYTES = 4_096
"""Larger entries are told of without themselves."""

_PLACES = f"""
local FINAL = {{{", ".join(f"{state.value} = true" for state in FINAL_STATES)}}}
local HELD = {{RUNNING = true, CANCELLING = true}}

local function place(id, state, at, runner, deadline, expires)
  if FINAL[state] then
    if tonumber(expires) > 0 then
      call('ZADD', P .. 'jobs:expiry', expires, id)
    end
    return
  end
  call('ZADD', P .. 'jobs:state:' .. state, at, id)
  if state ~= 'AWAITING_APPROVAL' then
    call('ZADD', P .. 'jobs:deadline', deadline, id)
  end
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
    if call('EXISTS', P .. 'jobs:runner:' .. runner) == 0 then
      call('SREM', P .. 'jobs:runners', runner)
    end
  end
end

local function lists(principal, request, task)
  local names = {{'jobs', 'jobs:of:' .. principal}}
  if request ~= '' then
    names[#names + 1] = 'jobs:request:' .. request
  end
  if task ~= '' then
    names[#names + 1] = 'jobs:task:' .. task
  end
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
  return {parts[1], parts[2], call('LINDEX', P .. 'job:' .. id .. ':log', -1)}
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
if existing then
  return (existing ~= id or call('HGET', job, 'by') ~= token) and read(existing)
end
call('HSET', job, 'by', token, 'version', version, 'seq', seq, 'state', state, 'at', at, 'runner', runner,
  'deadline', deadline, 'frame', frame, 'args', args, 'key', key, 'created', created, 'principal', principal,
  'tool', tool, 'request', request, 'task', task)
if key ~= '' then
  call('SET', P .. 'jobs:key:' .. key, id)
end
for _, name in ipairs(lists(principal, request, task)) do
  call('ZADD', P .. name, created, id)
end
place(id, state, at, runner, deadline, expires)
append(id, seq, status)
return false
""",
)
"""nil when done, or the parts of the job that stands"""

PUT = RedisScript(
    _PLACES,
    """
local id, token, before, seq, state, at, runner, deadline, expires, frame, status = unpack(ARGV, 1, 11)
local version, may_follow, args = ARGV[12], ARGV[13], ARGV[14]
local job = P .. 'job:' .. id
local now = call('HMGET', job, 'version', 'by', 'seq', 'state', 'runner')
if now[1] ~= before then
  return now[2] == token and 1 or 0
end
local is_new = tonumber(seq) == now[3] + 1
if is_new and not string.find(may_follow, ' ' .. now[4] .. ' ', 1, true) or not is_new and seq ~= now[3] then
  return -1
end
if now[4] ~= state or now[5] ~= runner then
  displace(id, now[4], now[5])
end
call('HSET', job, 'by', token, 'version', version, 'seq', seq, 'state', state, 'at', at, 'runner', runner,
  'deadline', deadline, 'frame', frame)
if args ~= '' then
  call('HSET', job, 'args', args)
end
place(id, state, at, runner, deadline, expires)
if is_new then
  append(id, seq, status)
end
return 1
""",
)
"""1 when done, 0 when another change came first, -1 when the entry may not follow"""

READ = RedisScript(
    _READ,
    """
local jobs = {}
for _, id in ipairs(ARGV) do
  jobs[#jobs + 1] = read(id)
end
return jobs
""",
)
"""ids → the parts of each, nil ones for those that are gone"""

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
  for at = 1, 2 do
    if one[at] ~= other[at] then
      return one[at] < other[at]
    end
  end
  return one[3] < other[3]
end)
local jobs = {}
for at = 1, math.min(most, #waiting) do
  jobs[at] = read(waiting[at][3])
end
return jobs
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
    if same > id then
      break
    end
    start = start + 1
  end
end
local jobs = {}
for _, each in ipairs(call('ZRANGE', list, start, start + most - 1)) do
  jobs[#jobs + 1] = read(each)
end
return jobs
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
"""states → a count for each, and when the job that is QUEUED longest was created, or nothing"""

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
  if found[6] ~= '' then
    call('DEL', P .. 'jobs:key:' .. found[6])
  end
  last_fed = math.max(last_fed, tonumber(found[7]))
  call('DEL', job, job .. ':log')
end
if last_fed > 0 then
  call('XTRIM', P .. 'feed', 'MINID', (last_fed + 1) .. '-0')
end
return #expired
""",
)
"""now, limit → how many. What was told of them goes, too, and with it what is older: nobody lags that far."""
