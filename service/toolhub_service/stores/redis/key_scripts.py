"""Lua scripts of idempotency keys, and how a key is stored in Redis.

`key:<name>` is a hash: owner, record, expires, of; once settled result and by; `waited` while somebody waits for
its end. `keys` is a sorted set of the names by expiry: what is counted, and what goes first; `keys:of:<of>` holds
those of one principal.
"""
# The functions' bodies are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from toolhub_service.stores.redis.script import ScriptRunner, redis_script

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


@redis_script(
    _FORGET,
    """
local now, most = tonumber(now_unix_ms), tonumber(max_keys)
local key = P .. 'key:' .. name
local existing = call('HMGET', key, 'owner', 'result', 'expires', 'record')
if existing[1] and tonumber(existing[3]) > now then
  if existing[1] == owner then
    return false
  end
  if existing[1] ~= replacing or existing[2] then
    return {existing[4], existing[3], existing[2]}
  end
  forget(name)
else
  if existing[1] then
    forget(name)
  end
  for _, expired in ipairs(call('ZRANGEBYSCORE', P .. 'keys', '-inf', now, 'LIMIT', 0, 100)) do
    forget(expired)
  end
  call('ZREMRANGEBYSCORE', P .. 'keys:of:' .. principal, '-inf', now)
  local taken, own = call('ZCARD', P .. 'keys'), call('ZCARD', P .. 'keys:of:' .. principal)
  if own >= most - taken then
    local first = call('ZRANGE', P .. 'keys', 0, 0, 'WITHSCORES')[2]
    local room_in_ms = first and tonumber(first) - now or 0
    return taken >= most and room_in_ms or {tostring(room_in_ms)}
  end
end
call('HSET', key, 'owner', owner, 'record', record, 'expires', expires, 'of', principal)
call('ZADD', P .. 'keys', expires, name)
call('ZADD', P .. 'keys:of:' .. principal, expires, name)
return false
""",
)
async def claim_key(
    link: ScriptRunner,
    *,
    name: bytes,
    now_unix_ms: int,
    max_keys: int,
    owner: str,
    replacing: str,
    record: bytes,
    expires: int,
    principal: bytes,
) -> int | list[bytes] | None:
    """Store a new key, or take over the unsettled one of the owner `replacing`.

    Returns None when done; the existing record, its expiry and its result; the milliseconds until there is room when
    all keys are taken; and those alone in a list when the principal's share is used up. `name` and `principal` are
    digests.
    """


@redis_script(
    _FORGET,
    """
local key = P .. 'key:' .. name
local is_held, settled, by = held(name, owner, tonumber(now_unix_ms))
if not is_held or settled then
  return is_held and by == token and 1 or 0
end
call('HSET', key, 'result', result, 'expires', expires, 'by', token)
call('ZADD', P .. 'keys', expires, name)
local of = call('HGET', key, 'of')
if of then
  call('ZADD', P .. 'keys:of:' .. of, expires, name)
end
if call('HDEL', key, 'waited') == 1 then
  tell('key', name)
end
return 1
""",
)
async def settle_key(
    link: ScriptRunner, *, name: bytes, now_unix_ms: int, owner: str, result: bytes, expires: int, token: str
) -> int:
    """Store the result of a key that `owner` holds; return 1 when done, 0 when it holds it no longer."""


@redis_script(
    _FORGET,
    """
local is_held, result = held(name, owner, tonumber(now_unix_ms))
if not is_held or result then
  return 0
end
forget(name)
return 1
""",
)
async def release_key(link: ScriptRunner, *, name: bytes, now_unix_ms: int, owner: str) -> int:
    """Remove an unsettled key that `owner` holds; return 1 when done."""


@redis_script(
    _FORGET,
    """
local is_held, result, _, expires = held(name, owner, tonumber(now_unix_ms))
if not is_held or result then
  return 0
end
call('HSET', P .. 'key:' .. name, 'waited', 1)
return tonumber(expires) - tonumber(now_unix_ms)
""",
)
async def await_key(link: ScriptRunner, *, name: bytes, now_unix_ms: int, owner: str) -> int:
    """Return the milliseconds until the claim expires, or 0 when it has ended; its end is published from now on."""
