"""Pages of records in hashes that sorted sets list by time: newest first, with the count of all that match.

The shortest list that holds every match is read. When the filter asks only for that list, its length is the count;
otherwise its records are filtered one by one, a thousand at a time, so that no script blocks the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolhub_service.stores.record_store import Row, Where
from toolhub_service.stores.redis.link import RedisLink, RedisScript

_CHECKED_AT_ONCE = 1_000
# kind, list, limit, time and id of the cursor or empty, fields → id, time and fields of each
_LIST = RedisScript(
    """
local kind, list, most, at, id = ARGV[1], P .. ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local start = 0
if at ~= '' then
  start = call('ZCOUNT', list, '(' .. at, '+inf')
  for _, same in ipairs(call('ZREVRANGEBYSCORE', list, at, at)) do
    if same < id then
      break
    end
    start = start + 1
  end
end
local rows = {}
local members = call('ZREVRANGE', list, start, start + most - 1, 'WITHSCORES')
for position = 1, #members, 2 do
  local row = call('HMGET', P .. kind .. members[position], unpack(ARGV, 6))
  table.insert(row, 1, members[position + 1])
  table.insert(row, 1, members[position])
  rows[#rows + 1] = row
end
return rows
"""
)

AT_DIGITS = 16
# kind, list, limit, upper bound, fields → name, time and fields of each
_LIST_MEMBERS = RedisScript(
    f"""
local rows = {{}}
for position, member in ipairs(call('ZREVRANGEBYLEX', P .. ARGV[2], ARGV[4], '-', 'LIMIT', 0, ARGV[3])) do
  local name = string.sub(member, {AT_DIGITS + 2})
  local facts = call('HMGET', P .. ARGV[1] .. name, unpack(ARGV, 5))
  rows[position] = {{name, string.sub(member, 1, {AT_DIGITS}), unpack(facts)}}
end
return rows
"""
)

Facts = Sequence[str]


class RedisPages:
    def __init__(
        self,
        link: RedisLink,
        kind: str,
        fields: Sequence[str],
        lists: Mapping[str, str],
        facts: Callable[[str, Facts], Row],
    ) -> None:
        """`kind` is the prefix of the hashes' keys, such as `job:`.

        `fields` are those a filter needs, which `facts` turns into columns. `lists` are by column, as in `Layout`.
        """
        self._link = link
        self._kind = kind
        self._fields = fields
        self._lists = lists
        self._facts = facts

    async def page(self, where: Where, after: tuple[int, str] | None, limit: int) -> tuple[list[str], int]:
        """Return ids, newest first, and how many match. Raises ToolFailure TOOL_UNAVAILABLE."""
        asked = {column: value for column, value in where.equals.items() if value}
        lists = [self._lists[column] + value for column, value in asked.items() if column in self._lists]
        lists = lists or [self._lists[""]]
        is_listed = len(lists) == 1 and asked.keys() <= self._lists.keys()
        if is_listed and not (any(where.among.values()) or any(where.like.values()) or any(where.checked.values())):
            count = int(await self._link.run("ZCARD", self._link.key(lists[0])))
            return [row[0] for row in await self._rows(lists[0], after, limit)] if limit else [], count
        shortest = lists[0]
        if len(lists) > 1:
            lengths = {name: int(await self._link.run("ZCARD", self._link.key(name))) for name in lists}
            shortest = min(lengths, key=lengths.__getitem__)
        return await self._checked(shortest, where, after, limit)

    async def _checked(
        self, name: str, where: Where, after: tuple[int, str] | None, limit: int
    ) -> tuple[list[str], int]:
        ids: list[str] = []
        count = 0
        cursor: tuple[int, str] | None = None
        while rows := await self._rows(name, cursor, _CHECKED_AT_ONCE):
            for item, at, *facts in rows:
                if not where.matches(self._facts(item, facts)):
                    continue
                count += 1
                if len(ids) < limit and (after is None or (int(at), item) < after):
                    ids.append(item)
            if len(rows) < _CHECKED_AT_ONCE:
                break
            cursor = int(rows[-1][1]), rows[-1][0]
        return ids, count

    async def _rows(self, name: str, cursor: tuple[int, str] | None, limit: int) -> list[list[str]]:
        at, item = ("", "") if cursor is None else (str(cursor[0]), cursor[1])
        rows = await self._link.call(_LIST, self._kind, name, limit, at, item, *self._fields)
        return [[(part or b"").decode() for part in row] for row in rows]


class MemberPages(RedisPages):
    """Pages of lists whose members are `<time> <name>` with one score: Redis keeps those in the order of their bytes,
    where a script's own comparison of texts would follow the server's locale."""

    async def _rows(self, name: str, cursor: tuple[int, str] | None, limit: int) -> list[list[str]]:
        bound = "+" if cursor is None else f"({cursor[0]:0{AT_DIGITS}d} {cursor[1]}"
        rows = await self._link.call(_LIST_MEMBERS, self._kind, name, limit, bound, *self._fields)
        return [[(part or b"").decode() for part in row] for row in rows]
