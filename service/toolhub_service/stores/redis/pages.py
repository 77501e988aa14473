"""Pages of records in hashes that sorted sets list by time: newest first, with the count of all that match.

The shortest list that holds every match is read. When the filter asks only for that list, its length is the count;
otherwise its records are filtered one by one, a thousand at a time, so that no script blocks the server.
"""
# The bodies of the scripts' functions are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolhub_service.stores.record_store import Row, Where
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.script import ScriptRunner, redis_script

_CHECKED_AT_ONCE = 1_000
AT_DIGITS = 16
"""Of a time in a list whose members are `<time> <name>`."""
Facts = Sequence[str]


@redis_script(
    """
local sorted, start = P .. list, 0
if at ~= '' then
  start = call('ZCOUNT', sorted, '(' .. at, '+inf')
  for _, same in ipairs(call('ZREVRANGEBYSCORE', sorted, at, at)) do
    if same < id then
      break
    end
    start = start + 1
  end
end
local rows = {}
local members = call('ZREVRANGE', sorted, start, start + limit - 1, 'WITHSCORES')
for position = 1, #members, 2 do
  local row = call('HMGET', P .. kind .. members[position], unpack(ARGV, fields_first))
  table.insert(row, 1, members[position + 1])
  table.insert(row, 1, members[position])
  rows[#rows + 1] = row
end
return rows
"""
)
async def list_by_score(
    link: ScriptRunner, *, kind: str, list: str, limit: int, at: str, id: str, fields: Sequence[str]
) -> Sequence[Sequence[bytes | None]]:
    """Return id, time and fields of each record of the list, latest first.

    `at` and `id` are those of the cursor, or empty; `kind` is the prefix of the hashes' keys.
    """


@redis_script(
    f"""
local rows = {{}}
for position, member in ipairs(call('ZREVRANGEBYLEX', P .. list, bound, '-', 'LIMIT', 0, limit)) do
  local name = string.sub(member, {AT_DIGITS + 2})
  local facts = call('HMGET', P .. kind .. name, unpack(ARGV, fields_first))
  rows[position] = {{name, string.sub(member, 1, {AT_DIGITS}), unpack(facts)}}
end
return rows
"""
)
async def list_by_member(
    link: ScriptRunner, *, kind: str, list: str, limit: int, bound: str, fields: Sequence[str]
) -> Sequence[Sequence[bytes | None]]:
    """Return name, time and fields of each record of a list whose members are `<time> <name>`, latest first.

    `bound` is the first member in ZREVRANGEBYLEX's form.
    """


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
        return await self._filter_list(shortest, where, after, limit)

    async def _filter_list(
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
        rows = await list_by_score(
            self._link, kind=self._kind, list=name, limit=limit, at=at, id=item, fields=self._fields
        )
        return [[(part or b"").decode() for part in row] for row in rows]


class MemberPages(RedisPages):
    """Pages of lists whose members are `<time> <name>` with one score: Redis keeps those in the order of their bytes,
    where a script's own comparison of texts would follow the server's locale."""

    async def _rows(self, name: str, cursor: tuple[int, str] | None, limit: int) -> list[list[str]]:
        bound = "+" if cursor is None else f"({cursor[0]:0{AT_DIGITS}d} {cursor[1]}"
        rows = await list_by_member(
            self._link, kind=self._kind, list=name, limit=limit, bound=bound, fields=self._fields
        )
        return [[(part or b"").decode() for part in row] for row in rows]
