"""Rate and quota counted by all hubs together: the same sums as budget/limits.py, in Redis.

One script checks all limits of a call before it counts in any: all or nothing. The server's clock is used, so that the
clocks of the hubs need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.ports import Clock
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, Refused, Taken
from toolhub_service.stores.redis.link import RedisLink, RedisScript

# `count:<limit id>` is a hash: full_at, when the bucket is full again (GCRA), and opened_at and used of the quota's
# window; it expires when a new one would say the same.

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
        """`clock` None: the server's clock."""
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
            return Refused(spent[which - 1], ExhaustedLimit(scarce.decode()), float(wait_ms) / 1_000)
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
    """Return the milliseconds between calls; empty without a rate."""
    return repr(1_000 / limit.rate_per_s) if limit.rate_per_s else ""
