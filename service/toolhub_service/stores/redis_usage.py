"""What tools were used for, in Redis, shared by all hubs with the same prefix.

`uses:count` numbers uses in the order they were added. `use:<number>` is a hash: record, and of (`<tool> <tenant>`).
`uses` lists the numbers, `uses:by-time` lists them by when the use was, and the list `uses:of:<tool> <tenant>` holds
those of one tool and tenant, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores.codec import decode_use, encode_use, readable
from toolhub_service.stores.redis_link import RedisLink, RedisScript

_DROP = """
local function drop(number)
  local name = P .. 'use:' .. number
  call('LREM', P .. 'uses:of:' .. call('HGET', name, 'of'), 1, number)
  call('ZREM', P .. 'uses', number)
  call('ZREM', P .. 'uses:by-time', number)
  call('DEL', name)
end
"""

_ADD = RedisScript(
    _DROP,
    """
local keep = tonumber(ARGV[1])
for first = 2, #ARGV, 3 do
  local of, at, record = unpack(ARGV, first, first + 2)
  local number = call('INCR', P .. 'uses:count')
  local list = P .. 'uses:of:' .. of
  call('HSET', P .. 'use:' .. number, 'of', of, 'record', record)
  call('ZADD', P .. 'uses', number, number)
  call('ZADD', P .. 'uses:by-time', at, number)
  if call('RPUSH', list, number) > keep then
    drop(call('LINDEX', list, 0))
  end
end
""",
)
"""keep, then of, at and record of each"""

_AFTER = RedisScript(
    """
local cursor = tonumber(ARGV[1])
if tonumber(call('GET', P .. 'uses:count') or 0) < cursor then
  cursor = 0
end
local found = {cursor}
for place, number in ipairs(call('ZRANGEBYSCORE', P .. 'uses', '(' .. cursor, '+inf', 'LIMIT', 0, ARGV[2])) do
  found[1] = tonumber(number)
  found[place + 1] = call('HGET', P .. 'use:' .. number, 'record')
end
return found
"""
)
"""cursor, limit → next cursor, records. A counter behind the cursor is one of a server that has lost its data."""

_FORGET = RedisScript(
    _DROP,
    """
local old = call('ZRANGEBYSCORE', P .. 'uses:by-time', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, number in ipairs(old) do
  drop(number)
end
return #old
""",
)
"""before, limit → how many"""


class RedisUsage:
    """Implements `UsageStore`."""

    def __init__(self, link: RedisLink, keep: int) -> None:
        self._link = link
        self._keep = keep

    async def add(self, uses: Sequence[ToolUse]) -> None:
        parts = (part for use in uses for part in (f"{use.tool} {use.tenant}", use.at_unix_ms, encode_use(use)))
        if uses:
            await self._link.call(_ADD, self._keep, *parts, once=True)

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        next_cursor, *records = await self._link.call(_AFTER, cursor, limit)
        return readable(records, decode_use), int(next_cursor)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return int(await self._link.call(_FORGET, before_unix_ms, limit))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Nothing is open here; the link is closed by its owner."""
