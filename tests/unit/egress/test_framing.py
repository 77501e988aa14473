"""Framing is counted, and must be in proportion to content; work is cut into turns."""

from __future__ import annotations

import pytest

from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.framing import (
    FIELDS_MAX,
    Allowance,
    HttpFraming,
    Pace,
    WebSocketFraming,
)

CHUNKED = [(b"Transfer-Encoding", b"chunked")]
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_more_than_the_free_units_needs_content_or_time() -> None:
    clock = Clock()
    allowance = Allowance(10, bytes_each=100, per_s=2, now_s=clock)
    assert allowance.take(10, 0)
    assert not allowance.take(1, 0)
    assert allowance.take(0, 100)
    assert not allowance.take(1, 0)
    clock.now_s = 0.5
    assert allowance.take(0, 0)
    assert not allowance.take(1, 0)


def test_a_pace_lets_a_burst_pass_and_then_so_many_a_second() -> None:
    clock = Clock()
    pace = Pace(10, 5, now_s=clock)
    assert pace.take(10) == 0
    assert pace.take(5) == 1.0
    clock.now_s = 1.0
    assert pace.take(5) == 1.0
    pace.earn(10)
    assert pace.take(5) == 0
    clock.now_s = 1_000.0
    assert pace.take(5) == 0.0
    assert pace.take(11) > 0, "what was not used adds up to one burst at most"


def framing_of_body(*headers: tuple[bytes, bytes]) -> HttpFraming:
    framing = HttpFraming()
    framing.begin()
    framing.feed(HEAD)
    assert framing.next_piece(65_536) == HEAD
    framing.body_follows("GET", 200, headers)
    return framing


def drained(framing: HttpFraming, data: bytes) -> list[bytes]:
    framing.feed(data)
    pieces = []
    while framing.has_bytes and (piece := framing.next_piece(65_536)):
        pieces.append(piece)
    return pieces


def test_chunks_are_passed_on_a_few_at_a_time() -> None:
    pieces = drained(framing_of_body(*CHUNKED), b"1\r\nx\r\n" * 1_000)
    assert b"".join(pieces) == b"1\r\nx\r\n" * 1_000
    assert max(piece.count(b"\r\n") for piece in pieces) <= 128


@pytest.mark.parametrize(
    "body",
    [
        b"1\r\nx\r\n" * 40_000,
        (b"1;" + b"a" * 2_000 + b"\r\nx\r\n") * 400,
        b"2\r\nab\r\n" * 40_000,
        b'1;q="' + b"z" * 100 + b'"\r\nx\r\n' + b"1\r\nx\r\n" * 40_000,
    ],
)
def test_a_body_of_far_more_framing_than_content_is_given_up(body: bytes) -> None:
    framing = framing_of_body(*CHUNKED)

    def read_all() -> None:
        for start in range(0, len(body), 65_536):
            drained(framing, body[start : start + 65_536])

    with pytest.raises(WireError) as caught:
        read_all()
    assert caught.value.breakage is Breakage.CRUMBLED


def test_large_chunks_are_never_too_many() -> None:
    framing = framing_of_body(*CHUNKED)
    chunk = b"400\r\n" + b"x" * 1_024 + b"\r\n"
    assert sum(len(b"".join(drained(framing, chunk * 60))) for _ in range(400)) == len(chunk) * 60 * 400


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 17,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (FIELDS_MAX + 5),
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
        b"HTTP/1.1 100 C\r\n" + b"a: b\n" * (FIELDS_MAX + 5),
    ],
)
def test_heads_are_bounded_in_number_fields_and_bytes(head: bytes) -> None:
    framing = HttpFraming()
    framing.begin()
    with pytest.raises(WireError) as caught:
        drained(framing, head)
    assert caught.value.breakage is Breakage.MALFORMED


def test_a_body_that_arrives_byte_by_byte_is_given_up_in_the_end() -> None:
    framing = framing_of_body((b"Content-Length", b"1000000"))

    def read_all() -> None:
        for _ in range(100_000):
            framing.feed(b"x")
            framing.next_piece(65_536)

    with pytest.raises(WireError) as caught:
        read_all()
    assert caught.value.breakage is Breakage.CRUMBLED


def test_bytes_behind_a_response_are_never_passed_on() -> None:
    framing = framing_of_body((b"Content-Length", b"2"))
    assert drained(framing, b"okHTTP/1.1 200 OK\r\n") == [b"ok"]
    assert framing.has_bytes


PING, EMPTY_FRAGMENT = b"\x89\x00", b"\x00\x00"
MESSAGE = b"\x81\x7e\x01\x00" + b"x" * 256


@pytest.mark.parametrize("frame", [PING, EMPTY_FRAGMENT, b"\x8a\x01x", b"\x81\x00"])
@pytest.mark.parametrize("size", [65_536, 7])
def test_a_flood_of_small_frames_is_given_up(frame: bytes, size: int) -> None:
    framing, data = WebSocketFraming(), frame * 40_000

    def read_all() -> None:
        for start in range(0, len(data), size):
            framing.split(data[start : start + size])

    with pytest.raises(WireError):
        read_all()


@pytest.mark.parametrize("size", [1, 5, 300, 65_536])
def test_frames_are_passed_on_unchanged_and_a_few_at_a_time(size: int) -> None:
    framing, data = WebSocketFraming(), (MESSAGE + PING) * 500 + b"\x82\x7f" + (70_000).to_bytes(8) + b"y" * 70_000
    pieces = [piece for start in range(0, len(data), size) for piece in framing.split(data[start : start + size])]
    assert b"".join(pieces) == data
    if size == 65_536:
        assert len(pieces) >= 1_000 / 64
    assert framing.split(PING) == [PING], "every frame was read to its end"
