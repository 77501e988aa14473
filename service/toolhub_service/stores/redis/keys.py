"""Idempotency keys in Redis, shared by all hubs with one prefix.

Each change is one script, so a compare-and-set. Expiry is by the hubs' clock: an expired key counts as gone, and each
claim of a new key removes up to a hundred of those. Waiters share the process's one feed, and a settled key is
published only if a waiter is registered.
"""

from __future__ import annotations

import asyncio
import hashlib
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolhub_service.domain.key import EffectKey, KeyRecord, full, share_is_taken
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import decode_key_record, decode_result, encode_key_record, encode_result
from toolhub_service.stores.redis.link import RedisLink, RedisScript

# `key:<name>` is a hash: owner, record, expires, of; once settled result and by; `waited` while somebody waits for
# its end. `keys` is a sorted set of the names by expiry: what is counted, and what goes first; `keys:of:<of>` holds
# those of one principal.

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

→ nil when done | the existing record, its expiry and result | the ms until there is room | the same, alone in a list,
when the principal's share is used up
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
"""name, now, owner → ms until the claim expires, and its end is published from now on; 0 when it has ended"""


class RedisKeys:
    """Implements `KeyStore`.

    Bounded in keys, with a share for each principal (`may_take`): when full, it refuses new ones and never drops an
    unexpired one. Bytes are bounded by the server's `maxmemory`, which refuses in the same way: nothing is evicted.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, max_keys: int = 1_000_000) -> None:
        """`max_keys` applies to all hubs together. The link is started by its owner."""
        self._link = link
        self._clock = clock
        self._max_keys = max_keys
        # Entries live as long as their waiters.
        self._awaited: WeakValueDictionary[bytes, asyncio.Event] = WeakValueDictionary()
        link.listen(b"key", self._on_event)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        answer: int | list[bytes] | None = await self._link.call(
            CLAIM,
            _name(key),
            self._clock.unix_ms(),
            self._max_keys,
            record.owner,
            replacing,
            encode_key_record(record),
            record.expires_at_unix_ms,
            _owner_of(key),
        )
        if answer is None:
            return None
        if isinstance(answer, int):
            raise full(answer)
        if len(answer) == 1:
            raise share_is_taken(int(answer[0]))
        existing, expires, *result = answer
        return replace(
            decode_key_record(existing),
            expires_at_unix_ms=int(expires),
            result=decode_result(result[0]) if result and result[0] else None,
        )

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        now, kept = self._clock.unix_ms(), encode_result(result)
        token = self._link.token()
        return bool(await self._link.call(SETTLE, _name(key), now, owner, kept, expires_at_unix_ms, token))

    async def release(self, key: EffectKey, owner: str) -> bool:
        return bool(await self._link.call(RELEASE, _name(key), self._clock.unix_ms(), owner))

    async def ended(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        name = _name(key)
        until_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            news = self._awaited.setdefault(name, asyncio.Event())
            left_ms = await self._link.call(AWAIT, name, self._clock.unix_ms(), owner)
            if not left_ms:
                return True
            if not await _wait_for_change(news, left_ms / 1_000, until_s):
                return False

    def _on_event(self, values: tuple[bytes, ...] | None) -> None:
        """Wake the keys' waiters; all of them after a gap, when any key may have ended."""
        for name in tuple(self._awaited) if values is None else values:
            if news := self._awaited.pop(name, None):
                news.set()


async def _wait_for_change(news: asyncio.Event, left_s: float, until_s: float) -> bool:
    """Wait for news, or for the claim to expire. Return False when the waiter's own time is over."""
    loop = asyncio.get_running_loop()
    expires_s = loop.time() + left_s
    try:
        async with asyncio.timeout_at(min(expires_s, until_s)):
            await news.wait()
    except TimeoutError:
        return expires_s < until_s
    return True


def _name(key: EffectKey) -> bytes:
    """Return a bounded name, distinct for any length and any characters, within its scope."""
    return hashlib.sha256(dumps(list(key))).hexdigest().encode()


def _owner_of(key: EffectKey) -> bytes:
    """Return a distinct name of the principal, for any length and any characters."""
    return hashlib.sha256(dumps([key.principal])).hexdigest()[:32].encode()
