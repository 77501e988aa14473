"""Rate and quota counted by all hubs together: the same sums as budget/limits.py, in Redis.

One script checks all limits of a call before it counts in any: all or nothing. The server's clock is used, so that the
clocks of the hubs need not agree.

`count:<limit id>` is a hash: full_at, when the bucket is full again (GCRA), and opened_at and used of the quota's
window; it expires when a new one would say the same.
"""
# The bodies of the scripts' functions are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from toolhub_service.domain.ports import Clock
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, Refused, Taken
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.script import ScriptRunner, redis_script


class _Terms(NamedTuple):
    """A limit; empty where it has no rate or no quota. Times are milliseconds."""

    id: str
    interval: str
    slack: str
    quota: str
    window: str


class _Spent(NamedTuple):
    """A limit in which a call was counted; `opened_at` as `_take` returned it."""

    id: str
    interval: str
    opened_at: bytes | str


@redis_script(
    """
local function server_ms()
  local time = call('TIME')
  return time[1] * 1000 + time[2] / 1000
end
local now = tonumber(now_unix_ms) or server_ms()
local limits = {}
for first = terms_first, #ARGV, terms_width do
  local given = terms_at(first)
  local key = P .. 'count:' .. given.id
  local kept = call('HMGET', key, 'full_at', 'opened_at', 'used')
  local limit = {key = key, interval = tonumber(given.interval), slack = tonumber(given.slack),
    quota = tonumber(given.quota), window = tonumber(given.window),
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
if spend == '' then
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
async def _take(link: ScriptRunner, *, now_unix_ms: str, spend: str, terms: Sequence[_Terms]) -> Sequence[Any]:
    """Count a call in all limits, or in none.

    Returns the number, from 1, of the limit that refuses, by what, and for how many milliseconds; or 0 and when the
    window of each quota opened. `now_unix_ms` empty: the server's clock. `spend` empty: look only.
    """


@redis_script(
    """
for first = spent_first, #ARGV, spent_width do
  local given = spent_at(first)
  local key = P .. 'count:' .. given.id
  local kept = call('HMGET', key, 'full_at', 'opened_at')
  if kept[1] and given.interval ~= '' then
    call('HSET', key, 'full_at', string.format('%.3f', kept[1] - given.interval))
  end
  if kept[2] and kept[2] == given.opened_at then
    call('HINCRBY', key, 'used', -1)
  end
end
""",
    once=True,
)
async def _give_back(link: ScriptRunner, *, spent: Sequence[_Spent]) -> None:
    """Take a counted call out of its limits, unless a new window has opened since."""


class RedisCounts:
    """Implements `SharedCounts`."""

    def __init__(self, link: RedisLink, clock: Clock | None = None) -> None:
        """`clock` None: the server's clock."""
        self._link = link
        self._clock = clock

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        spent = tuple(limit for limit in limits if limit.rate_per_s or limit.quota is not None)
        if not spent:
            return Taken()
        now = "" if self._clock is None else str(self._clock.unix_ms())
        terms = [_terms_of(limit) for limit in spent]
        which, *answer = await _take(self._link, now_unix_ms=now, spend="1" if spend else "", terms=terms)
        if which:
            scarce, wait_ms = answer
            return Refused(spent[which - 1], ExhaustedLimit(scarce.decode()), float(wait_ms) / 1_000)
        return Taken(spent, tuple(answer[0])) if spend else Taken()

    async def give_back(self, taken: Taken) -> None:
        marks = zip(taken.limits, taken.marks, strict=True)
        spent = [_Spent(limit.id, _interval(limit), opened_at) for limit, opened_at in marks]
        if spent:
            await _give_back(self._link, spent=spent)


def _terms_of(limit: Limit) -> _Terms:
    slack_ms = (limit.burst - 1) * 1_000 / limit.rate_per_s if limit.rate_per_s else 0.0
    quota = "" if limit.quota is None else str(limit.quota)
    return _Terms(limit.id, _interval(limit), repr(slack_ms), quota, repr(limit.quota_window_s * 1_000))


def _interval(limit: Limit) -> str:
    """Return the milliseconds between calls; empty without a rate."""
    return repr(1_000 / limit.rate_per_s) if limit.rate_per_s else ""
