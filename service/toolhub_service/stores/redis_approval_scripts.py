"""What becomes of approvals, as scripts.

`approval:<id>` is a hash: record, version, by (the token of the last change), fed (its number in the feed), and what it
is found by. Sorted sets find approvals: `approvals` and `approvals:of:<principal>` all of them, by the time they were
asked for; `approvals:open` and `approvals:ended` by their expiry. `approvals:binding:<digest>` names the open one that
a binding has.
"""

from __future__ import annotations

from toolhub_service.domain.approval import ApprovalState
from toolhub_service.stores.redis_script import RedisScript

OPEN_STATES = (ApprovalState.PENDING, ApprovalState.APPROVED)

_PLACE = f"""
local OPEN = {{{", ".join(f"{state.value} = true" for state in OPEN_STATES)}}}

local function place(id, state, expires, binding)
  local name = P .. 'approvals:binding:' .. binding
  if OPEN[state] then
    call('ZADD', P .. 'approvals:open', expires, id)
    call('SET', name, id)
    return
  end
  call('ZREM', P .. 'approvals:open', id)
  call('ZADD', P .. 'approvals:ended', expires, id)
  if call('GET', name) == id then
    call('DEL', name)
  end
end

local function keep(id, token, version, state, expires, binding, record)
  call('HSET', P .. 'approval:' .. id, 'by', token, 'version', version, 'state', state, 'binding', binding,
    'record', record, 'fed', tell('approval', record))
  place(id, state, expires, binding)
end
"""

CREATE = RedisScript(
    _PLACE,
    """
local id, token, version, state, expires, binding, record = unpack(ARGV, 1, 7)
local requested, principal, tool = unpack(ARGV, 8)
local standing = call('GET', P .. 'approvals:binding:' .. binding)
if standing then
  return standing ~= id and call('HGET', P .. 'approval:' .. standing, 'record')
end
keep(id, token, version, state, expires, binding, record)
call('HSET', P .. 'approval:' .. id, 'principal', principal, 'tool', tool)
call('ZADD', P .. 'approvals', requested, id)
call('ZADD', P .. 'approvals:of:' .. principal, requested, id)
return false
""",
)
"""nil when done, or the record that stands"""

PUT = RedisScript(
    _PLACE,
    """
local id, token, version, state, expires, binding, record = unpack(ARGV, 1, 7)
local now = call('HMGET', P .. 'approval:' .. id, 'version', 'by')
if not now[1] or now[1] + 1 ~= tonumber(version) then
  return now[2] == token and 1 or 0
end
keep(id, token, version, state, expires, binding, record)
return 1
""",
)
"""1 when done, 0 when another change came first"""

READ = RedisScript(
    """
local records = {}
for at, id in ipairs(ARGV) do
  records[at] = call('HGET', P .. 'approval:' .. id, 'record')
end
return records
"""
)
"""ids → the record of each, nil for those that are gone"""

LAPSED = RedisScript(
    """
local records = {}
for at, id in ipairs(call('ZRANGEBYSCORE', P .. 'approvals:open', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  records[at] = call('HGET', P .. 'approval:' .. id, 'record')
end
return records
"""
)
"""now, limit → records"""

FORGET = RedisScript(
    """
local last_fed = 0
local ended = call('ZRANGEBYSCORE', P .. 'approvals:ended', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ended) do
  local approval = call('HMGET', P .. 'approval:' .. id, 'principal', 'fed')
  call('ZREM', P .. 'approvals:ended', id)
  call('ZREM', P .. 'approvals', id)
  call('ZREM', P .. 'approvals:of:' .. approval[1], id)
  call('DEL', P .. 'approval:' .. id)
  last_fed = math.max(last_fed, tonumber(approval[2]))
end
if last_fed > 0 then
  call('XTRIM', P .. 'feed', 'MINID', (last_fed + 1) .. '-0')
end
return #ended
"""
)
"""before, limit → how many"""
