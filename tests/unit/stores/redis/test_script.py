"""Lua scripts as typed functions: what a signature becomes in the script and in ARGV."""
# The bodies of the scripts' functions are Lua.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.unit.stores.redis.redis_links import link
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.script import ScriptRunner, redis_script

__all__ = ["link"]


class Place(NamedTuple):
    street: str
    number: int


@redis_script("return {name, count, data}")
async def echo(link: ScriptRunner, *, name: str, count: int, data: bytes) -> list[bytes]: ...


@redis_script("return {words_first, unpack(ARGV, words_first)}")
async def echo_words(link: ScriptRunner, *, name: str, words: Sequence[str]) -> list[bytes | int]: ...


@redis_script(
    """
local found = {places_width}
for first = places_first, #ARGV, places_width do
  local place = places_at(first)
  found[#found + 1] = place.street .. ' ' .. place.number
end
return found
"""
)
async def echo_places(link: ScriptRunner, *, places: Sequence[Place]) -> list[bytes | int]: ...


@redis_script("return twice(name)")
async def repeat(link: ScriptRunner, *, name: str) -> bytes: ...


async def test_parameters_are_variables_of_the_script_however_the_call_orders_them(link: RedisLink) -> None:
    assert await echo(link, data=b"\xff\0", count=7, name="Ä") == ["Ä".encode(), b"7", b"\xff\0"]


async def test_sequence_fills_the_rest_of_the_arguments(link: RedisLink) -> None:
    assert await echo_words(link, name="a", words=["b", "c"]) == [2, b"b", b"c"]
    assert await echo_words(link, name="a", words=[]) == [2]


async def test_rows_are_read_by_the_names_of_their_fields(link: RedisLink) -> None:
    assert await echo_places(link, places=[Place("Main", 1), Place("Side", 22)]) == [2, b"Main 1", b"Side 22"]


async def test_shared_lua_comes_before_the_script(link: RedisLink) -> None:
    script = repeat.with_shared("local function twice(text) return text .. text end")
    assert await script(link, name="ab") == b"abab"


def test_no_parameter_can_follow_a_sequence() -> None:
    with pytest.raises(TypeError, match="words fills the rest of ARGV"):

        @redis_script("return 1")
        async def unusable(link: ScriptRunner, *, words: Sequence[str], name: str) -> int: ...
