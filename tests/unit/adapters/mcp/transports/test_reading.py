"""Responses are read exactly, in pieces of any size, and given up where they are mostly framing."""

from __future__ import annotations

import pytest

from toolhub_service.adapters.mcp.transports.reading import ResponseReader
from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.framing import FIELDS_MAX, LINES_A_TURN

OK = b"HTTP/1.1 200 OK\r\n"
COUNTED = OK + b"Content-Length: 5\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"


def fed(data: bytes, size: int = 65_536, reader: ResponseReader | None = None) -> ResponseReader:
    """A reader that got the data in turns, arriving in pieces of that size."""
    reader = reader or ResponseReader()
    for start in range(0, len(data), size):
        piece, at = data[start : start + size], 0
        while at < len(piece):
            end = reader.end_of_turn(piece, at)
            assert end > at
            reader.feed(piece[at:end])
            at = end
    return reader


@pytest.mark.parametrize("size", [1, 3, 65_536])
@pytest.mark.parametrize(
    "data",
    [
        COUNTED + b"hello",
        EARLY * 3 + COUNTED + b"hello",
        CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nchecksum: 1\r\n\r\n",
    ],
)
def test_a_response_is_read_to_its_end_and_another_may_follow(data: bytes, size: int) -> None:
    reader = fed(data, size)
    assert (reader.status, b"".join(reader.body)) == (200, b"hello")
    assert reader.is_complete
    assert reader.can_be_followed
    assert all(name in {b"content-length", b"transfer-encoding"} for name, _ in reader.fields)


@pytest.mark.parametrize("size", [1, 65_536])
@pytest.mark.parametrize(
    "data",
    [
        COUNTED + b"helloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        COUNTED + b"hellox",
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + b"a: b\r\n" * 500,
        COUNTED + b"hello" + EARLY * 40,
        OK + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_what_follows_a_response_is_no_part_of_it_and_nothing_follows_on_its_connection(data: bytes, size: int) -> None:
    reader = fed(data, size)
    assert b"".join(reader.body) == b"hello"
    assert reader.is_complete
    assert not reader.can_be_followed


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_status_without_a_body_ends_the_response_whatever_length_it_names(status: bytes) -> None:
    reader = fed(b"HTTP/1.1 " + status + b"\r\nContent-Length: 7\r\n\r\n")
    assert reader.is_complete
    assert not reader.can_be_followed
    assert not reader.body


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    reader = fed(OK + b"\r\nhel")
    fed(b"lo", reader=reader)
    reader.end()
    assert b"".join(reader.body) == b"hello"
    assert not reader.can_be_followed


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 2", EARLY, COUNTED + b"hell", CHUNKED + b"5\r\nhello\r\n"])
def test_a_connection_that_ends_before_its_response_is_broken(data: bytes) -> None:
    reader = fed(data)
    with pytest.raises(WireError) as caught:
        reader.end()
    assert caught.value.breakage is Breakage.BROKEN


@pytest.mark.parametrize(
    ("data", "breakage"),
    [
        (b"not HTTP at all\r\n\r\n", Breakage.BROKEN),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Breakage.BROKEN),
        (b"HTTP/1.1 101 Switching\r\n\r\n", Breakage.BROKEN),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", Breakage.BROKEN),
        (OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", Breakage.BROKEN),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", Breakage.BROKEN),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", Breakage.BROKEN),
        (OK + b"Content-Length: -5\r\n\r\n", Breakage.BROKEN),
        (CHUNKED + b"x\r\n", Breakage.MALFORMED),
        (CHUNKED + b"1\r\nab\r\n", Breakage.MALFORMED),
        (EARLY * 17, Breakage.MALFORMED),
        (OK + b"a: b\r\n" * (FIELDS_MAX + 5), Breakage.MALFORMED),
        (OK + b"a: " + b"b" * 70_000, Breakage.MALFORMED),
        (OK + b"b" * 70_000, Breakage.MALFORMED),
    ],
)
@pytest.mark.parametrize("size", [1, 65_536])
def test_a_response_that_is_not_one_is_given_up_at_once(data: bytes, breakage: Breakage, size: int) -> None:
    with pytest.raises(WireError) as caught:
        fed(data, size)
    assert caught.value.breakage is breakage


@pytest.mark.parametrize(
    "body",
    [
        b"1\r\nx\r\n" * 40_000,
        (b"1;" + b"a" * 2_000 + b"\r\nx\r\n") * 400,
        b"2\r\nab\r\n" * 40_000,
        b'1;q="' + b"z" * 100 + b'"\r\nx\r\n' + b"1\r\nx\r\n" * 40_000,
        b"0\r\n" + b"a: b\r\n" * 40_000,
        b"0\r\na: " + b"b" * 400_000,
    ],
)
@pytest.mark.parametrize("size", [17, 65_536])
def test_a_body_of_far_more_framing_than_content_is_given_up(body: bytes, size: int) -> None:
    with pytest.raises(WireError) as caught:
        fed(CHUNKED + body, size)
    assert caught.value.breakage is Breakage.CRUMBLED


def test_large_chunks_are_never_too_many() -> None:
    chunk = b"400\r\n" + b"x" * 1_024 + b"\r\n"
    reader, read = fed(CHUNKED), 0
    for _ in range(400):
        fed(chunk * 60, reader=reader)
        read += sum(map(len, reader.body))
        reader.body.clear()
    assert read == 1_024 * 60 * 400


@pytest.mark.parametrize("data", [CHUNKED + b"1\r\nx\r\n" * 1_000, EARLY * 1_000, OK + b"a: b\r\n" * 1_000])
def test_one_turn_parses_a_few_lines(data: bytes) -> None:
    reader, at = ResponseReader(), 0
    for _ in range(2):
        end = reader.end_of_turn(data, at)
        assert data.count(b"\r\n", at, end) <= LINES_A_TURN
        try:
            reader.feed(data[at:end])
        except WireError:
            break
        at = end


def test_one_turn_parses_whatever_has_arrived_of_a_body_with_a_length() -> None:
    reader = fed(OK + b"Content-Length: 9000\r\n\r\n")
    body = b"\r\n" * 4_500
    assert reader.end_of_turn(body, 0) == len(body)
