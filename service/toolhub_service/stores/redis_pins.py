"""Pins in Redis, shared by all hubs with the same prefix: see redis_pin_scripts for the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.stores.codec import encode_pin, readable
from toolhub_service.stores.codec_pins import KeptPin, are_distinct, pin_of, pins_of
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_pin_scripts import AT_DIGITS, FORGET, LIST, OF_SOURCE, PUT, READ

_AT_ONCE: Final = 1_000
_Row = tuple[str, str]
"""Member and state."""


class RedisPins:
    """Implements `PinStore`. Records are written and read in threads: they may be large."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def of_source(self, source: str) -> Sequence[Pin]:
        kept = await self._link.call(OF_SOURCE, source)
        return await asyncio.to_thread(lambda: pins_of(map(_kept, kept)))

    async def put(self, pins: Sequence[Pin]) -> bool:
        if not are_distinct(pins):
            return False
        if not pins:
            return True
        parts = await asyncio.to_thread(_parts, pins)
        return bool(await self._link.call(PUT, self._link.token(), *parts))

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        """Members are judged a thousand at a time, so that no script holds the server up."""
        chosen, count = await self._search(where, "" if after is None else _member(after), limit)
        kept = await self._link.call(READ, *(member[AT_DIGITS + 1 :] for member in chosen)) if chosen else []
        still_there = [_kept(row) for row in kept if row[1] is not None]
        return await asyncio.to_thread(readable, still_there, pin_of), count

    async def revision(self) -> int:
        return int(await self._link.run("GET", self._link.key("pins:revision")) or 0)

    async def forget_source(self, source: str) -> int:
        return int(await self._link.call(FORGET, source))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Nothing is open here; the link is closed by its owner."""

    async def _search(self, where: PinFilter, after: str, limit: int) -> tuple[list[str], int]:
        """Members of the page, and how many match in all."""
        name = f"pins:of:{where.source}" if where.source else "pins"
        if not where.tool and not where.states:
            rows = await self._rows(name, after, limit) if limit else []
            return [member for member, _ in rows], int(await self._link.run("ZCARD", self._link.key(name)))
        chosen: list[str] = []
        count, last = 0, ""
        states = {state.value for state in where.states}
        while rows := await self._rows(name, last, _AT_ONCE):
            matching = [member for member, state in rows if _matches(where.tool, states, member, state)]
            count += len(matching)
            chosen += [member for member in matching if not after or member < after][: limit - len(chosen)]
            if len(rows) < _AT_ONCE:
                break
            last = rows[-1][0]
        return chosen, count

    async def _rows(self, name: str, after: str, limit: int) -> list[_Row]:
        rows = await self._link.call(LIST, name, f"({after}" if after else "+", limit)
        return [(member.decode(), (state or b"").decode()) for member, state in rows]


def _parts(pins: Sequence[Pin]) -> list[bytes | str | int]:
    """In the script's order."""
    return [
        part
        for pin in pins
        for part in (
            pin.source,
            " ".join(pin.key),
            _at(pin.seen_at_unix_ms),
            pin.version,
            pin.state.value,
            encode_pin(pin),
        )
    ]


def _kept(row: Sequence[bytes | None]) -> KeptPin:
    """One of which the server has lost a part is one that cannot be read."""
    name, version, record = (part or b"" for part in row)
    source, tool, digest = name.decode().split(" ")
    return KeptPin(source, tool, digest, int(version or 0), record)


def _at(unix_ms: int) -> str:
    return f"{unix_ms:0{AT_DIGITS}d}"


def _member(place: tuple[int, str, str, str]) -> str:
    return " ".join((_at(place[0]), *place[1:]))


def _matches(pattern: str, states: set[str], member: str, state: str) -> bool:
    _, _, tool, _ = member.split(" ")
    return (not states or state in states) and (not pattern or fnmatchcase(tool, pattern))
