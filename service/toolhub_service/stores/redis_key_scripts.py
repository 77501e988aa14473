"""What becomes of one idempotency key, as scripts.

`key:<name>` is a hash: owner, record, expires; once settled result and by; `waited` while somebody waits for its end.
`keys` is a sorted set of the names by expiry: what is counted, and what goes first.
"""

from __future__ import annotations

from toolhub_service.stores.redis_script import RedisScript

_FORGET = """
local function forget(name)
  if call('HGET', P .. 'key:' .. name, 'waited') then
    tell('key', name)
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
  if call('ZCARD', P .. 'keys') >= most then
    return tonumber(call('ZRANGE', P .. 'keys', 0, 0, 'WITHSCORES')[2]) - now
  end
end
call('HSET', key, 'owner', owner, 'record', ARGV[6], 'expires', ARGV[7])
call('ZADD', P .. 'keys', ARGV[7], name)
return false
""",
)
"""name, now, most keys, owner, replacing, record, expires

→ nil when done | the standing record, its expiry and result | the ms until there is room
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
