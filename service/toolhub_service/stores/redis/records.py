"""Records and uses of tools in Redis, shared by all hubs with one prefix.

`RecordStore` for any `Table` that has a `Layout`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Final, Generic, TypeVar

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.source import Pin
from toolhub_service.domain.tool import ToolUse
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import UnreadableRecord, decode_use, encode_use, readable
from toolhub_service.stores.record_store import (
    APPROVALS,
    ARTIFACTS,
    OPEN_STATES,
    PINS,
    Approvals,
    Artifacts,
    Kept,
    Key,
    Pins,
    Place,
    Row,
    Table,
    Where,
)
from toolhub_service.stores.redis.link import RedisLink, RedisScript
from toolhub_service.stores.redis.pages import AT_DIGITS, MemberPages, RedisPages
from toolhub_service.stores.redis.record_scripts import Layout, Scripts

R = TypeVar("R")


class RedisRecords(Generic[R]):
    """The link is closed by its owner."""

    def __init__(self, link: RedisLink, table: Table[R], layout: Layout) -> None:
        self._link = link
        self._table = table
        self._layout = layout
        self._scripts = Scripts(layout)
        pages = MemberPages if layout.by_member else RedisPages
        self._pages = pages(link, f"{layout.kind}:", layout.stored, layout.lists, layout.found)
        self._listening = ExitStack()

    async def create(self, record: R) -> R | None:
        existing = await self._link.call(self._scripts.create, self._link.token(), *self._written(record))
        return self._table.read(_kept(existing)) if existing else None

    async def put(self, records: Sequence[R]) -> bool:
        if len(records) == 1:
            parts = self._written(records[0])
        else:  # many may be large, and would block the event loop
            parts = await asyncio.to_thread(lambda: [part for record in records for part in self._written(record)])
        return bool(await self._link.call(self._scripts.put, self._link.token(), *parts))

    async def get(self, key: Key) -> R | None:
        ((name, version, record),) = await self._link.call(self._scripts.read, " ".join(key))
        return self._table.read(_kept((name, version, record))) if record else None

    async def find(self, column: str, value: str) -> Sequence[R]:
        found = await self._link.call(self._scripts.all_of, self._layout.lists[column] + value)
        return await asyncio.to_thread(lambda: self._table.read_all(map(_kept, found)))

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        cursor = None if after is None else (int(after[0]), " ".join(after[1:]))
        names, count = await self._pages.page(where, cursor, limit)
        return await self._read(await self._link.call(self._scripts.read, *names) if names else ()), count

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        name = "open" if self._table.ends else "expiry"
        return await self._read(
            await self._link.call(self._scripts.expired, f"{self._layout.kind}s:{name}", now_unix_ms, limit)
        )

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        ended = f"{self._layout.kind}s:ended"
        return int(await self._link.call(self._scripts.forget, ended, before_unix_ms, limit))

    async def remove(self, key: Key, version: int = 0) -> bool:
        return bool(await self._link.call(self._scripts.remove, " ".join(key), version))

    async def remove_all(self, column: str, value: str) -> int:
        lists = self._layout.lists
        return int(await self._link.call(self._scripts.remove_all, lists[column] + value, lists[""]))

    async def totals(self, value: str) -> tuple[int, int]:
        count, total = [
            int(await self._link.run("HGET", self._link.key(f"{self._layout.kind}s:{sum_}"), value) or 0)
            for sum_ in ("count", "bytes")
        ]
        return count, total

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        counts, sums = [
            await self._link.run("HGETALL", self._link.key(f"{self._layout.kind}s:{sum_}"))
            for sum_ in ("count", "bytes")
        ]
        sum_of = dict(zip(sums[::2], sums[1::2], strict=True))  # values and fields alternate
        pairs = zip(counts[::2], counts[1::2], strict=True)
        return [(value.decode(), int(count), int(sum_of.get(value, 0))) for value, count in pairs]

    async def revision(self) -> int:
        return int(await self._link.run("GET", self._link.key(f"{self._layout.kind}s:revision")) or 0)

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        kind = self._layout.kind.encode()
        self._listening.callback(self._link.listen(kind, lambda values: on_event(self._change_of(values))))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        self._listening.close()

    def _written(self, record: R) -> list[bytes | str | int]:
        """Return name, version, record and fields, in the scripts' order."""
        row = self._table.row(record)
        name = " ".join(self._table.key_of(row))
        return [name, row.get("version", 0), self._table.encode(record), *self._layout.fields(row)]

    async def _read(self, found: Iterable[Sequence[bytes | None]]) -> list[R]:
        """Return the records, without those that are gone."""
        kept = [_kept(parts) for parts in found if parts[2] is not None]
        return await asyncio.to_thread(readable, kept, self._table.read) if kept else []

    def _change_of(self, values: tuple[bytes, ...] | None) -> R | None:
        """Return the record; None when something was missed or cannot be read, upon which listeners read the store."""
        try:
            return self._table.decode(values[0]) if values else None
        except UnreadableRecord:
            return None


def _kept(parts: Sequence[bytes | None]) -> Kept:
    """Return the stored record; one of which the server has lost a part is unreadable."""
    name, version, record = (part or b"" for part in parts)
    return Kept(tuple(name.decode().split(" ")), int(version or 0), record)


def _binding_digest(row: Row) -> str:
    return hashlib.sha256(dumps(json.loads(row["binding"]))).hexdigest()


APPROVAL_LAYOUT: Final = Layout(
    kind="approval",
    stored=("state", "binding", "principal", "tool"),
    others=("requested", "expires"),
    fields=lambda row: (
        row["state"],
        _binding_digest(row),
        row["principal"],
        row["tool"],
        row["requested_at_unix_ms"],
        row["expires_at_unix_ms"],
    ),
    places=f"""
local OPEN = {{{", ".join(f"{state.value} = true" for state in OPEN_STATES)}}}
local function places(id, row)
  local all, own = {{'approvals', row.requested, id}}, {{'approvals:of:' .. row.principal, row.requested, id}}
  local by_expiry = {{OPEN[row.state] and 'approvals:open' or 'approvals:ended', row.expires, id}}
  return {{all, own, by_expiry}}, OPEN[row.state] and 'approvals:binding:' .. row.binding
end
""",
    lists={"": "approvals", "principal": "approvals:of:"},
    has_feed=True,
    found=lambda _, facts: dict(zip(("state", "binding", "principal", "tool"), facts, strict=True)),
)
ARTIFACT_LAYOUT: Final = Layout(
    kind="artifact",
    stored=("sha256", "principal", "size"),
    others=("expires",),
    fields=lambda row: (row["sha256"], row["principal"], row["size_bytes"], row["expires_at_unix_ms"]),
    places="""
local function places(id, row)
  return {{'artifacts:expiry', row.expires, id}}
end
""",
    lists={"": "artifacts:expiry"},
    shared="sha256",
    total=("principal", "size"),
    found=lambda _, facts: dict(zip(("sha256", "principal", "size_bytes"), facts, strict=True)),
)
PIN_LAYOUT: Final = Layout(
    kind="pin",
    stored=("state", "at"),
    fields=lambda row: (row["state"], f"{row['seen_at_unix_ms']:0{AT_DIGITS}d}"),
    places="""
local function places(name, row)
  local member = row.at .. ' ' .. name
  return {{'pins', 0, member}, {'pins:of:' .. string.match(name, '^[^ ]+'), 0, member}}
end
""",
    lists={"": "pins", "source": "pins:of:"},
    has_revision=True,
    by_member=True,
    found=lambda name, facts: {"source": name.split(" ")[0], "tool": name.split(" ")[1], "state": facts[0]},
)


INNER_CALL_LAYOUT: Final = Layout(
    kind="inner_call",
    stored=("job",),
    others=("expires",),
    fields=lambda row: (row["job_id"], row["expires_at_unix_ms"]),
    places="""
local function places(name, row)
  return {{'inner_calls:expiry', row.expires, name}, {'inner_calls:of:' .. row.job, 0, name}}
end
""",
    lists={"": "inner_calls:expiry", "job_id": "inner_calls:of:"},
    found=lambda _, facts: {"job_id": facts[0]},
)
CREDENTIAL_LAYOUT: Final = Layout(
    kind="credential",
    stored=("owner", "source"),
    others=("at",),
    fields=lambda row: (row["owner"], row["source"], row["changed_at_unix_ms"]),
    places="""
local function places(name, row)
  local of_owner, of_source = 'credentials:of:' .. row.owner, 'credentials:source:' .. row.source
  return {{'credentials', row.at, name}, {of_owner, row.at, name}, {of_source, row.at, name}}
end
""",
    lists={"": "credentials", "owner": "credentials:of:", "source": "credentials:source:"},
    found=lambda _, facts: {"owner": facts[0], "source": facts[1]},
)


class RedisApprovals(Approvals):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Approval](link, APPROVALS, APPROVAL_LAYOUT))


class RedisArtifacts(Artifacts):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Artifact](link, ARTIFACTS, ARTIFACT_LAYOUT))


class RedisPins(Pins):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Pin](link, PINS, PIN_LAYOUT))


# What tools were used for. `uses:count` numbers the uses in the order of their addition. `use:<number>` is a hash:
# record, and of (`<tool> <tenant>`). `uses` lists the numbers, `uses:by-time` lists them by when the use was, and the
# list `uses:of:<tool> <tenant>` holds those of one tool and tenant, oldest first.

_DROP_USE = """
local function drop(number)
  local name = P .. 'use:' .. number
  call('LREM', P .. 'uses:of:' .. call('HGET', name, 'of'), 1, number)
  call('ZREM', P .. 'uses', number)
  call('ZREM', P .. 'uses:by-time', number)
  call('DEL', name)
end
"""

# keep, then of, at and record of each
_ADD_USES = RedisScript(
    _DROP_USE,
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

# cursor, limit → next cursor, records. A counter behind the cursor shows that the server has lost its data.
_USES_AFTER = RedisScript(
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

# before, limit → how many
_FORGET_USES = RedisScript(
    _DROP_USE,
    """
local old = call('ZRANGEBYSCORE', P .. 'uses:by-time', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, number in ipairs(old) do
  drop(number)
end
return #old
""",
)


class RedisUsage:
    """Implements `UsageStore`."""

    def __init__(self, link: RedisLink, keep: int) -> None:
        self._link = link
        self._keep = keep

    async def add(self, uses: Sequence[ToolUse]) -> None:
        parts = (part for use in uses for part in (f"{use.tool} {use.tenant}", use.at_unix_ms, encode_use(use)))
        if uses:
            await self._link.call(_ADD_USES, self._keep, *parts, once=True)

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        next_cursor, *records = await self._link.call(_USES_AFTER, cursor, limit)
        return readable(records, decode_use), int(next_cursor)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return int(await self._link.call(_FORGET_USES, before_unix_ms, limit))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Nothing is open here; the link is closed by its owner."""
