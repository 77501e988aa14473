"""Lua scripts of the Redis stores, each declared as a typed Python function whose signature is the script's contract.

Redis runs a script atomically: for changes that must not interleave, and reads that would need many round trips.

    @redis_script("return call('ZRANGE', P .. list, 0, limit - 1)")
    async def read_first(link: ScriptRunner, *, list: str, limit: int) -> list[bytes]: ...

    await read_first(link, list="jobs", limit=10)

Parameters are local variables of the Lua text, under the same names, as the texts in which they were sent. The last one
may be a sequence, or a NamedTuple: it fills the rest of ARGV, and the variable `<name>_first` is the position of its
first value. For a sequence of NamedTuples without inner sequences there are also `<name>_width`, how many values each
has, and the function `<name>_at(position)`, which returns the one that begins there as a table. The function returns
the answer in RESP2's types: int, bytes, list, and None for Lua's false.

`P` is KEYS[1], the prefix of all keys, which scripts append to. (A prefix with a hash tag, `{toolhub}:`, puts all keys
into one slot.) A script may run twice when its first answer was lost: one that changes something takes a token of the
call and stores it beside what it wrote, so that the second run answers like the first one. A script that forgets
records trims their entries from the feed, and older ones with them: no reader lags that far.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import UnionType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, get_args, get_type_hints

from toolhub_service.stores.redis.feed import KEPT

Value: TypeAlias = bytes | str | int
"""What one place of ARGV is sent as."""
P = ParamSpec("P")
T = TypeVar("T")

_PRELUDE: Final = f"""
local P = KEYS[1]
local call = redis.call

local function tell(kind, ...)
  local number = call('INCR', P .. 'feed:count')
  local fields = {{'k', kind}}
  for at, value in ipairs({{...}}) do
    fields[#fields + 1] = at
    fields[#fields + 1] = value
  end
  call('XADD', P .. 'feed', 'MAXLEN', '~', {KEPT}, number .. '-0', unpack(fields))
  return number
end

local function trim(last)
  if last > 0 then
    call('XTRIM', P .. 'feed', 'MINID', (last + 1) .. '-0')
  end
end
"""


class LuaText:
    """The whole text of a script and its digest, by which Redis knows it once it has been loaded."""

    __slots__ = ("digest", "text")

    def __init__(self, *parts: str) -> None:
        self.text = "\n".join((_PRELUDE, *parts))
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class ScriptRunner(Protocol):
    """Sends scripts to Redis; see `RedisLink.call`."""

    async def call(self, script: LuaText, *arguments: Value, once: bool = False) -> Any: ...


class RedisScript(Generic[P, T]):
    """A declared script; call it with a link and its parameters by keyword."""

    def __init__(self, declared: Callable[..., Any], parts: Sequence[str], *, once: bool) -> None:
        self._declared = declared
        self._parts = parts
        self._once = once
        self._names, header = _read_signature(declared)
        *shared, body = parts
        self._lua = LuaText(*shared, header, body)

    def with_shared(self, lua: str) -> RedisScript[P, T]:
        """Return the same script with more Lua before its own, such as functions that it needs."""
        return RedisScript(self._declared, (lua, *self._parts), once=self._once)

    async def __call__(self, link: ScriptRunner, /, *_: P.args, **parameters: P.kwargs) -> T:
        """Raises ToolFailure TOOL_UNAVAILABLE."""
        arguments: list[Value] = []
        for name in self._names:
            _spread(parameters[name], arguments)
        answer: T = await link.call(self._lua, *arguments, once=self._once)
        return answer


def redis_script(
    *parts: str, once: bool = False
) -> Callable[[Callable[Concatenate[ScriptRunner, P], Awaitable[T]]], RedisScript[P, T]]:
    """Declare the script that consists of these Lua texts; the last one can use the parameters.

    `once`: it is not sent again when its answer was lost, as it cannot recognise its own repetition.
    """

    def declare(declared: Callable[Concatenate[ScriptRunner, P], Awaitable[T]]) -> RedisScript[P, T]:
        return RedisScript(declared, parts, once=once)

    return declare


def _read_signature(declared: Callable[..., Any]) -> tuple[list[str], str]:
    """Return the parameters' names in the order of ARGV, and the Lua text that makes them variables.

    Raises TypeError for a parameter after one that fills the rest of ARGV.
    """
    hints = get_type_hints(declared)
    names = list(inspect.signature(declared).parameters)[1:]
    lines: list[str] = []
    for at, name in enumerate(names, start=1):
        if _is_single(hints[name]):
            lines.append(f"local {name} = ARGV[{at}]")
        elif at < len(names):
            raise TypeError(f"{declared.__name__}: {name} fills the rest of ARGV, so no parameter can follow it")
        else:
            lines += [f"local {name}_first = {at}", *_reader_of_rows(name, hints[name])]
    return names, "\n".join(lines)


def _is_single(hint: Any) -> bool:
    return hint in (bytes, str, int) or (isinstance(hint, UnionType) and set(get_args(hint)) <= {bytes, str, int})


def _reader_of_rows(name: str, hint: Any) -> list[str]:
    """Return the Lua that reads rows by the names of their fields; nothing if these are no rows of one width."""
    (row, *_) = get_args(hint) or (None,)
    fields: tuple[str, ...] = getattr(row, "_fields", ())
    if row is None or not fields or not all(map(_is_single, get_type_hints(row).values())):
        return []
    entries = ", ".join(f"{field} = ARGV[at + {place}]" for place, field in enumerate(fields))
    return [f"local {name}_width = {len(fields)}", f"local function {name}_at(at)", f"  return {{{entries}}}", "end"]


def _spread(value: Any, arguments: list[Value]) -> None:
    if isinstance(value, bytes | str | int):
        arguments.append(value)
    else:
        for each in value:
            _spread(each, arguments)
