"""Changes of records, as Lua scripts that are the same for every layout.

`<kind>:<name>` is a hash: record, version, by (the token of the last change), what the layout stores, and `fed`, its
number in the feed, where changes are published. The layout's `places` computes, in Lua, the lists a record is on, so
that scripts can move it from its old lists to its new ones. Scripts return a record as {name, version, record}.
"""
# The bodies of the scripts' functions are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from toolhub_service.stores.record_store import Row
from toolhub_service.stores.redis.pages import AT_DIGITS, Facts
from toolhub_service.stores.redis.script import ScriptRunner, redis_script

RecordParts: TypeAlias = Sequence[bytes | None]
"""Of a stored record: name, version, record; None for a part that is gone."""


class StoredRecord(NamedTuple):
    """A record as scripts take it."""

    name: str
    version: int
    record: bytes
    fields: tuple[str | int, ...]
    """Those of `Layout.fields`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table are stored in Redis."""

    kind: str
    """The prefix of the hashes' keys, and the kind of news in the feed."""
    stored: tuple[str, ...]
    """The stored fields of the hash."""
    fields: Callable[[Row], tuple[str | int, ...]]
    """Their values, followed by the other values that `places` needs."""
    places: str
    """Lua: the lists (sorted sets: name, score, member) that a row is on, and its unique name where it has one."""
    lists: Mapping[str, str]
    """By column: the prefix of the lists of all records with one value; the list of all records under an empty name."""
    others: tuple[str, ...] = ()
    """Fields that are not stored, only used as scores."""
    has_feed: bool = False
    """Whether changes are published in the feed."""
    has_revision: bool = False
    """Whether changes are counted."""
    by_member: bool = False
    """Whether members are `<time> <name>` with one score, in the order of their bytes."""
    shared: str = ""
    """The field of which records may share a value; `<plural>:with:<value>` is the set of those that do."""
    total: tuple[str, str] = ("", "")
    """The field by which records are counted, and the field that is summed."""
    found: Callable[[str, Facts], Row] = field(default=lambda *_: {})
    """Turns a record's name and its stored fields into columns, for filters."""


def _lua_of(layout: Layout) -> str:
    def names(of: Iterable[str]) -> str:
        return "{" + ", ".join(f"'{each}'" for each in of) + "}"

    plural = f"{layout.kind}s"
    counted, summed = layout.total
    return f"""
local KIND, PLURAL, HAS_FEED, SHARED = '{layout.kind}', '{plural}', {str(layout.has_feed).lower()}, '{layout.shared}'
local STORED, OTHERS, COUNTED, SUMMED = {names(layout.stored)}, {names(layout.others)}, '{counted}', '{summed}'
local COUNTS, NAME_AT = {str(layout.has_revision).lower()}, {AT_DIGITS + 2 if layout.by_member else 1}
{layout.places}
{_KEEP}"""


_KEEP: Final = """
local WIDTH = 3 + #STORED + #OTHERS

local function hash(name)
  return P .. KIND .. ':' .. name
end

local function row_at(first)
  local row = {}
  for at, field in ipairs(STORED) do
    row[field] = ARGV[first + 2 + at]
  end
  for at, field in ipairs(OTHERS) do
    row[field] = ARGV[first + 2 + #STORED + at]
  end
  return row
end

local function kept_row(name)
  local values = call('HMGET', hash(name), unpack(STORED))
  local row = {}
  for at, field in ipairs(STORED) do
    if not values[at] then
      return nil
    end
    row[field] = values[at]
  end
  return row
end

local function add_up(row, change)
  if COUNTED == '' then
    return
  end
  local size = change > 0 and row[SUMMED] or 0 - row[SUMMED]
  for sum, by in pairs({count = change, bytes = size}) do
    if call('HINCRBY', P .. PLURAL .. ':' .. sum, row[COUNTED], by) == 0 then
      call('HDEL', P .. PLURAL .. ':' .. sum, row[COUNTED])
    end
  end
end

local function leave(name, row)
  local lists, unique = places(name, row)
  for _, list in ipairs(lists) do
    call('ZREM', P .. list[1], list[3])
  end
  if unique and call('GET', P .. unique) == name then
    call('DEL', P .. unique)
  end
  if SHARED ~= '' then
    call('SREM', P .. PLURAL .. ':with:' .. row[SHARED], name)
  end
  add_up(row, -1)
end

local function keep(token, first)
  local name, version, record = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local before, row = kept_row(name), row_at(first)
  if before then
    leave(name, before)
  end
  local lists, unique = places(name, row)
  for _, list in ipairs(lists) do
    call('ZADD', P .. list[1], list[2], list[3])
  end
  if unique then
    call('SET', P .. unique, name)
  end
  if SHARED ~= '' then
    call('SADD', P .. PLURAL .. ':with:' .. row[SHARED], name)
  end
  add_up(row, 1)
  local fields = {'by', token, 'version', version, 'record', record}
  for at, field in ipairs(STORED) do
    fields[#fields + 1] = field
    fields[#fields + 1] = row[field]
  end
  call('HSET', hash(name), unpack(fields))
  if HAS_FEED then
    call('HSET', hash(name), 'fed', tell(KIND, record))
  end
end

local function read(name)
  local found = call('HMGET', hash(name), 'version', 'record')
  return {name, found[1], found[2]}
end

local function drop(name)
  local row = kept_row(name)
  if row then
    leave(name, row)
  end
  call('UNLINK', hash(name))
  return row
end
"""


@redis_script("""
local name = ARGV[record_first]
local _, unique = places(name, row_at(record_first))
local existing = unique and call('GET', P .. unique)
if not existing and call('EXISTS', hash(name)) == 1 then
  existing = name
end
if existing then
  return (existing ~= name or call('HGET', hash(name), 'by') ~= token) and read(existing)
end
keep(token, record_first)
return false
""")
async def _create(link: ScriptRunner, *, token: str, record: StoredRecord) -> RecordParts | None:
    """Store a new record; return None when done, or the one that has its name or its unique value."""


@redis_script("""
for first = records_first, #ARGV, WIDTH do
  local now = call('HMGET', hash(ARGV[first]), 'version', 'by')
  if (tonumber(now[1]) or 0) + 1 ~= tonumber(ARGV[first + 1]) then
    return now[2] == token and 1 or 0
  end
end
for first = records_first, #ARGV, WIDTH do
  keep(token, first)
end
if COUNTS then
  call('INCR', P .. PLURAL .. ':revision')
end
return 1
""")
async def _put(link: ScriptRunner, *, token: str, records: Sequence[StoredRecord]) -> int:
    """Store all records or none; return 1 when done, 0 when another change came first."""


@redis_script("""
local found = {}
for at = names_first, #ARGV do
  found[at - names_first + 1] = read(ARGV[at])
end
return found
""")
async def _read_records(link: ScriptRunner, *, names: Sequence[str]) -> Sequence[RecordParts]:
    """Return the records of these names."""


@redis_script("""
local found = {}
for at, member in ipairs(call('ZRANGE', P .. list, 0, -1)) do
  found[at] = read(string.sub(member, NAME_AT))
end
return found
""")
async def _read_list(link: ScriptRunner, *, list: str) -> Sequence[RecordParts]:
    """Return all records on the list."""


@redis_script("""
local found = {}
for at, name in ipairs(call('ZRANGEBYSCORE', P .. list, '-inf', now_unix_ms, 'LIMIT', 0, limit)) do
  found[at] = read(name)
end
return found
""")
async def _read_expired(link: ScriptRunner, *, list: str, now_unix_ms: int, limit: int) -> Sequence[RecordParts]:
    """Return the records on the list, by expiry, that have expired."""


@redis_script("""
local last_fed = 0
local ended = call('ZRANGEBYSCORE', P .. list, '-inf', '(' .. before_unix_ms, 'LIMIT', 0, limit)
for _, name in ipairs(ended) do
  last_fed = math.max(last_fed, tonumber(call('HGET', hash(name), 'fed') or 0))
  drop(name)
  call('ZREM', P .. list, name)
end
trim(last_fed)
return #ended
""")
async def _forget(link: ScriptRunner, *, list: str, before_unix_ms: int, limit: int) -> int:
    """Remove the records on the list, by expiry, that expired before this time; return how many there were."""


@redis_script("""
if version ~= '0' and call('HGET', hash(name), 'version') ~= version then
  return 0
end
local row = drop(name)
if row and COUNTS then
  call('INCR', P .. PLURAL .. ':revision')
end
return row and (SHARED == '' and 1 or 1 - call('EXISTS', P .. PLURAL .. ':with:' .. row[SHARED])) or 0
""")
async def _remove(link: ScriptRunner, *, name: str, version: int) -> int:
    """Remove the record; return 1 when it was there and no other record shares its value.

    `version` 0: whichever it has.
    """


@redis_script("""
local members = call('ZRANGE', P .. list, 0, -1)
for _, member in ipairs(members) do
  drop(string.sub(member, NAME_AT))
  call('ZREM', P .. list_of_all, member)
end
call('DEL', P .. list)
if COUNTS and #members > 0 then
  call('INCR', P .. PLURAL .. ':revision')
end
return #members
""")
async def _remove_all(link: ScriptRunner, *, list: str, list_of_all: str) -> int:
    """Remove all records on the list; return how many there were.

    Members whose hash is lost are removed from both lists, too.
    """


class RecordScripts:
    """The scripts of one layout."""

    def __init__(self, layout: Layout) -> None:
        lua = _lua_of(layout)
        self.create = _create.with_shared(lua)
        self.put = _put.with_shared(lua)
        self.read = _read_records.with_shared(lua)
        self.read_list = _read_list.with_shared(lua)
        self.read_expired = _read_expired.with_shared(lua)
        self.forget = _forget.with_shared(lua)
        self.remove = _remove.with_shared(lua)
        self.remove_all = _remove_all.with_shared(lua)
