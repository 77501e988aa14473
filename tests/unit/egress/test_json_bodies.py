"""JSON of upstreams: small at once, large beside others and one at a time, and never more than is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.egress.json_bodies import JsonBodies, is_large

ROWS: list[JsonValue] = [{"id": number, "name": "somebody"} for number in range(30_000)]
MANY = json.dumps(ROWS).encode()


async def test_a_large_body_is_read_beside_others() -> None:
    reading = asyncio.create_task(JsonBodies().read(MANY))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await reading).value == ROWS
    assert turns > 2  # on the event loop it would be read within one


async def test_large_ones_are_read_one_after_the_other_and_small_ones_at_once() -> None:
    bodies, ended = JsonBodies(), list[str]()

    async def read(name: str, data: bytes) -> None:
        await bodies.read(data)
        ended.append(name)

    await asyncio.gather(read("first", MANY), read("second", MANY), read("small", b"[1]"))
    assert ended == ["small", "first", "second"]


@pytest.mark.parametrize(
    ("data", "large"),
    [(b"[]", False), (b'["' + b"x," * 200_000 + b'"]', True), (b'["' + b"x" * 900_000 + b'"]', False), (MANY, True)],
)
def test_large_is_what_has_many_values_or_very_many_bytes(data: bytes, large: bool) -> None:
    assert is_large(data) is large


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: b"[" + b"[]," * 300_000 + b"[]]", "too_many_values"),
        (lambda: b"{" + b",".join(b'"%d":1' % number for number in range(400_000)) + b"}", "too_many_values"),
        (lambda: b"[" * 100 + b"1" * 2_000_000 + b"]" * 100, "too_deep"),
        (lambda: b"[" + b"1," * 500_000 + b"]", "syntax"),
    ],
)
async def test_an_unreadable_body_is_refused_with_its_reason(made: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(ToolFailure) as refused:
        await JsonBodies().read(made())
    assert refused.value.error.details["reason"] == reason


async def test_signs_within_texts_count_for_nothing() -> None:
    text = ',[{:"\\' * 200_000
    assert await JsonBodies().read(json.dumps([text]).encode()) == ([text], ())
