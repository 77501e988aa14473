"""What tools were used for, in Redis, shared by all hubs with one prefix.

`uses:count` numbers the uses in the order of their addition. `use:<number>` is a hash: record, and of
(`<tool> <tenant>`). `uses` lists the numbers, `uses:by-time` lists them by when the use was, and the list
`uses:of:<tool> <tenant>` holds those of one tool and tenant, oldest first.
"""
# The bodies of the scripts' functions are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores.codec import decode_use, encode_use, readable
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.script import ScriptRunner, redis_script

_DROP_USE = """
local function drop(number)
  local name = P .. 'use:' .. number
  call('LREM', P .. 'uses:of:' .. call('HGET', name, 'of'), 1, number)
  call('ZREM', P .. 'uses', number)
  call('ZREM', P .. 'uses:by-time', number)
  call('DEL', name)
end
"""


class _Use(NamedTuple):
    of: str
    at: int
    record: bytes


@redis_script(
    _DROP_USE,
    """
for first = uses_first, #ARGV, uses_width do
  local use = uses_at(first)
  local number = call('INCR', P .. 'uses:count')
  local list = P .. 'uses:of:' .. use.of
  call('HSET', P .. 'use:' .. number, 'of', use.of, 'record', use.record)
  call('ZADD', P .. 'uses', number, number)
  call('ZADD', P .. 'uses:by-time', use.at, number)
  if call('RPUSH', list, number) > tonumber(keep) then
    drop(call('LINDEX', list, 0))
  end
end
""",
    once=True,
)
async def _add_uses(link: ScriptRunner, *, keep: int, uses: Sequence[_Use]) -> None:
    """Add the uses, and drop all but the latest `keep` of each tool and tenant."""


@redis_script(
    """
local start = tonumber(cursor)
if tonumber(call('GET', P .. 'uses:count') or 0) < start then
  start = 0
end
local found = {start}
for place, number in ipairs(call('ZRANGEBYSCORE', P .. 'uses', '(' .. start, '+inf', 'LIMIT', 0, limit)) do
  found[1] = tonumber(number)
  found[place + 1] = call('HGET', P .. 'use:' .. number, 'record')
end
return found
"""
)
async def _read_uses(link: ScriptRunner, *, cursor: int, limit: int) -> Sequence[Any]:
    """Return the next cursor, then the records after this one.

    A counter behind the cursor shows that the server has lost its data: then reading begins anew.
    """


@redis_script(
    _DROP_USE,
    """
local old = call('ZRANGEBYSCORE', P .. 'uses:by-time', '-inf', '(' .. before_unix_ms, 'LIMIT', 0, limit)
for _, number in ipairs(old) do
  drop(number)
end
return #old
""",
)
async def _forget_uses(link: ScriptRunner, *, before_unix_ms: int, limit: int) -> int:
    """Remove uses before this time; return how many there were."""


class RedisUsage:
    """Implements `UsageStore`."""

    def __init__(self, link: RedisLink, keep: int) -> None:
        self._link = link
        self._keep = keep

    async def add(self, uses: Sequence[ToolUse]) -> None:
        if uses:
            added = [_Use(f"{use.tool} {use.tenant}", use.at_unix_ms, encode_use(use)) for use in uses]
            await _add_uses(self._link, keep=self._keep, uses=added)

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        next_cursor, *records = await _read_uses(self._link, cursor=cursor, limit=limit)
        return readable(records, decode_use), int(next_cursor)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await _forget_uses(self._link, before_unix_ms=before_unix_ms, limit=limit)

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Nothing is open here; the link is closed by its owner."""
