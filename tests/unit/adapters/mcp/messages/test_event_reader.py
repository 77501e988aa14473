"""The messages of an event stream, whose pieces may end anywhere."""

from __future__ import annotations

import pytest

from toolhub_service.adapters.mcp.messages.event_reader import EventReader


def messages(raw: bytes, size: int = 65_536) -> list[bytes]:
    reader = EventReader()
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
    return [data for piece in pieces for data in reader.messages(piece)] + [*reader.last_messages()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 65_536])
def test_the_data_of_messages_is_joined_and_everything_else_left_out(end: bytes, size: int) -> None:
    lines = [
        *(b": a comment", b""),
        *(b"id: 7", b"retry: 10", b"event: message", b"data: one", b""),
        *(b"data:two", b"data", b"data:  lines", b""),
        *(b"event: other", b"data: not this", b""),
        *(b"data:", b""),
        *(b"data: last", b"", b"data: has no end"),
    ]
    assert messages(end.join(lines), size) == [b"one", b"two\n\n lines", b"last"]


def test_an_event_that_the_stream_does_not_end_is_dropped() -> None:
    assert messages(b"data: x\n") == []
    assert messages(b"data: x\n\n") == [b"x"]
    assert messages(b"data: x\r\r") == [b"x"]
