"""What a call takes in Redis, shared by all hubs with one prefix: its idempotency key, its part of rates and quotas.

Each change is one script, so a compare-and-set. Expiry is by the hubs' clock: a key whose time is over counts as gone,
and each claim of a new key removes up to a hundred of those. Waiting costs one subscriber of the process's feed, and a
settled key is told of only where somebody has said that it waits.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolhub_service.domain.key import EffectKey, KeyRecord, full, share_is_taken
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.verdict import Limit, Refused, Scarce, Taken
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import decode_key_record, decode_result, encode_key_record, encode_result
from toolhub_service.stores.redis_link import RedisLink, RedisScript

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


class RedisKeys:
    """Implements `KeyStore`. Bounded in keys, of which each principal has a share (domain/share.py): when full, it
    refuses new ones and forgets none.

    Bytes are bounded by the server's `maxmemory`, which refuses in the same way: nothing is evicted.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, max_keys: int = 1_000_000) -> None:
        """`max_keys` of all hubs together. The link is started by its owner."""
        self._link = link
        self._clock = clock
        self._max_keys = max_keys
        # Kept alive by those who wait.
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
            if not await _heard_of(news, left_ms / 1_000, until_s):
                return False

    def _on_event(self, values: tuple[bytes, ...] | None) -> None:
        """After a gap anything may have ended: all look again."""
        for name in tuple(self._awaited) if values is None else values:
            if news := self._awaited.pop(name, None):
                news.set()


async def _heard_of(news: asyncio.Event, left_s: float, until_s: float) -> bool:
    """Wait for news, or for the claim to expire. False when the waiter's own time is over."""
    loop = asyncio.get_running_loop()
    expires_s = loop.time() + left_s
    try:
        async with asyncio.timeout_at(min(expires_s, until_s)):
            await news.wait()
    except TimeoutError:
        return expires_s < until_s
    return True


def _name(key: EffectKey) -> bytes:
    """Of any length and any characters, within its scope: told apart, and bounded."""
    return hashlib.sha256(dumps(list(key))).hexdigest().encode()


def _owner_of(key: EffectKey) -> bytes:
    """The principal, of any length and any characters, told apart."""
    return hashlib.sha256(dumps([key.principal])).hexdigest()[:32].encode()


# Rate and quota counted by all hubs together: the same sums as budget/limits.py, in Redis.
#
# `count:<limit id>` is a hash: full_at, when the bucket is full again (GCRA), and opened_at and used of the quota's
# window; it expires when a new one would say the same. All limits of a call are looked at before any is spent, in one
# script: it takes all or nothing. Time is the server's, so that the clocks of the hubs need not agree.

# now or empty; empty to look only; id, interval, slack, quota and window in ms of each limit, empty where it has none
#
# → which refuses (from 1), by what, for how many ms | 0 and when each window opened
_TAKE = RedisScript(
    """
local function server_ms()
  local time = call('TIME')
  return time[1] * 1000 + time[2] / 1000
end
local now = tonumber(ARGV[1]) or server_ms()
local limits = {}
for at = 3, #ARGV, 5 do
  local key = P .. 'count:' .. ARGV[at]
  local kept = call('HMGET', key, 'full_at', 'opened_at', 'used')
  local limit = {key = key, interval = tonumber(ARGV[at + 1]), slack = tonumber(ARGV[at + 2]),
    quota = tonumber(ARGV[at + 3]), window = tonumber(ARGV[at + 4]),
    full_at = tonumber(kept[1]) or 0, opened_at = tonumber(kept[2]), used = tonumber(kept[3])}
  limits[#limits + 1] = limit
  if limit.interval and limit.full_at - limit.slack - now > 0.001 then
    return {#limits, 'rate', string.format('%.3f', limit.full_at - limit.slack - now)}
  end
  if limit.quota then
    if not limit.opened_at or now - limit.opened_at >= limit.window then
      limit.opened_at, limit.used = now, 0
    end
    if limit.used >= limit.quota then
      return {#limits, 'quota', string.format('%.3f', limit.opened_at + limit.window - now)}
    end
  end
end
local opened = {}
if ARGV[2] == '' then
  return {0, opened}
end
for at, limit in ipairs(limits) do
  local idle_at = now
  if limit.interval then
    local full_at = math.max(now, limit.full_at) + limit.interval
    call('HSET', limit.key, 'full_at', string.format('%.3f', full_at))
    idle_at = full_at
  end
  opened[at] = ''
  if limit.quota then
    opened[at] = string.format('%.3f', limit.opened_at)
    call('HSET', limit.key, 'opened_at', opened[at], 'used', limit.used + 1)
    idle_at = math.max(idle_at, limit.opened_at + limit.window)
  end
  call('PEXPIRE', limit.key, math.ceil(idle_at - now) + 1000)
end
return {0, opened}
"""
)

# id, interval, when the window opened, of each limit
_GIVE_BACK = RedisScript(
    """
for at = 1, #ARGV, 3 do
  local key = P .. 'count:' .. ARGV[at]
  local kept = call('HMGET', key, 'full_at', 'opened_at')
  if kept[1] and ARGV[at + 1] ~= '' then
    call('HSET', key, 'full_at', string.format('%.3f', kept[1] - ARGV[at + 1]))
  end
  if kept[2] and kept[2] == ARGV[at + 2] then
    call('HINCRBY', key, 'used', -1)
  end
end
"""
)


class RedisCounts:
    """Implements `SharedCounts`."""

    def __init__(self, link: RedisLink, clock: Clock | None = None) -> None:
        """`clock` None: the server's."""
        self._link = link
        self._clock = clock

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        spent = tuple(limit for limit in limits if limit.rate_per_s or limit.quota is not None)
        if not spent:
            return Taken()
        now = "" if self._clock is None else str(self._clock.unix_ms())
        terms = [term for limit in spent for term in _terms(limit)]
        which, *answer = await self._link.call(_TAKE, now, "1" if spend else "", *terms)
        if which:
            scarce, wait_ms = answer
            return Refused(spent[which - 1], Scarce(scarce.decode()), float(wait_ms) / 1_000)
        return Taken(spent, tuple(answer[0])) if spend else Taken()

    async def give_back(self, taken: Taken) -> None:
        parts: list[bytes | str] = []
        for limit, opened_at in zip(taken.limits, taken.marks, strict=True):
            parts += (limit.id, _interval(limit), opened_at)
        if parts:
            await self._link.call(_GIVE_BACK, *parts, once=True)


def _terms(limit: Limit) -> tuple[str, str, str, str, str]:
    slack_ms = (limit.burst - 1) * 1_000 / limit.rate_per_s if limit.rate_per_s else 0.0
    quota = "" if limit.quota is None else str(limit.quota)
    return limit.id, _interval(limit), repr(slack_ms), quota, repr(limit.quota_window_s * 1_000)


def _interval(limit: Limit) -> str:
    """Milliseconds between calls; empty without a rate."""
    return repr(1_000 / limit.rate_per_s) if limit.rate_per_s else ""
