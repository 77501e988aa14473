"""What becomes of one idempotency key, as scripts.

`key:<name>` is a hash: owner, record, expires, of; once settled result and by; `waited` while somebody waits for its
end. `keys` is a sorted set of the names by expiry: what is counted, and what goes first; `keys:of:<of>` holds those of
one principal.
"""

from __future__ import annotations

from toolhub_service.stores.redis_script import RedisScript

_FORGET = """
local function forget(name)
  local key = call('HMGET', P .. 'key:' .. name, 'waited', 'of')
  if key[1] then
    tell('key', name)
  end
  if key[2] then
    call('ZREM', P .. 'keys:of:' .. key[2], name)
  end
  call('DEL', P .. 'key:' .. name)
  call('ZREM', P .. 'keys', name)
end

local function held(name, owner, now)
  local key = call('HMGET', P .. 'key:' .. name, 'owner', 'result', 'expires', 'by')
  return key[1] == owner and tonumber(key[3]) > now, key[2], key[4], key[3]
end
"""

CLAIM = RedisScript(
    _FORGET,
    """
local name, now, most, owner, replacing = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key = P .. 'key:' .. name
local standing = call('HMGET', key, 'owner', 'result', 'expires', 'record')
if standing[1] and tonumber(standing[3]) > now then
  if standing[1] == owner then
    return false
  end
  if standing[1] ~= replacing or standing[2] then
    return {standing[4], standing[3], standing[2]}
  end
  forget(name)
else
  if standing[1] then
    forget(name)
  end
  for _, expired in ipairs(call('ZRANGEBYSCORE', P .. 'keys', '-inf', now, 'LIMIT', 0, 100)) do
    forget(expired)
  end
  call('ZREMRANGEBYSCORE', P .. 'keys:of:' .. ARGV[8], '-inf', now)
  local taken, own = call('ZCARD', P .. 'keys'), call('ZCARD', P .. 'keys:of:' .. ARGV[8])
  if own >= most - taken then
    local first = call('ZRANGE', P .. 'keys', 0, 0, 'WITHSCORES')[2]
    local room_in_ms = first and tonumber(first) - now or 0
    return taken >= most and room_in_ms or {tostring(room_in_ms)}
  end
end
call('HSET', key, 'owner', owner, 'record', ARGV[6], 'expires', ARGV[7], 'of', ARGV[8])
call('ZADD', P .. 'keys', ARGV[7], name)
call('ZADD', P .. 'keys:of:' .. ARGV[8], ARGV[7], name)
return false
""",
)
"""name, now, most keys, owner, replacing, record, expires, of

→ nil when done | the standing record, its expiry and result | the ms until there is room | the same, alone in a list,
when it is the principal's share that is taken
"""

SETTLE = RedisScript(
    _FORGET,
    """
local name, key = ARGV[1], P .. 'key:' .. ARGV[1]
local is_held, result, by = held(name, ARGV[3], tonumber(ARGV[2]))
if not is_held or result then
  return is_held and by == ARGV[6] and 1 or 0
end
call('HSET', key, 'result', ARGV[4], 'expires', ARGV[5], 'by', ARGV[6])
call('ZADD', P .. 'keys', ARGV[5], name)
local of = call('HGET', key, 'of')
if of then
  call('ZADD', P .. 'keys:of:' .. of, ARGV[5], name)
end
if call('HDEL', key, 'waited') == 1 then
  tell('key', name)
end
return 1
""",
)
"""name, now, owner, result, expires, token → 1 when done"""

RELEASE = RedisScript(
    _FORGET,
    """
local is_held, result = held(ARGV[1], ARGV[3], tonumber(ARGV[2]))
if not is_held or result then
  return 0
end
forget(ARGV[1])
return 1
""",
)
"""name, now, owner → 1 when done"""

AWAIT = RedisScript(
    _FORGET,
    """
local is_held, result, _, expires = held(ARGV[1], ARGV[3], tonumber(ARGV[2]))
if not is_held or result then
  return 0
end
call('HSET', P .. 'key:' .. ARGV[1], 'waited', 1)
return tonumber(expires) - tonumber(ARGV[2])
""",
)
"""name, now, owner → ms until the claim expires, its end being told from now on; 0 when it has ended"""
