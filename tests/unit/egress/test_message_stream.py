from __future__ import annotations

import httpcore
import pytest

from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.closings import Closings
from toolhub_service.egress.message_stream import MessageStream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
MORE = b"HTTP/1.1 200 OK\r\n"


async def stream_of(*pieces: bytes) -> MessageStream:
    """A stream that has just sent a request and gets these pieces one by one."""
    stream = MessageStream(httpcore.AsyncMockStream(list(pieces)), "192.0.2.1", Closings())
    await stream.write(b"GET / HTTP/1.1\r\n\r\n")
    return stream


async def read_until(stream: MessageStream, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        data += await stream.read(65_536)
    return data


def cuts(raw: bytes) -> list[tuple[bytes, bytes]]:
    return [(raw[:at], raw[at:]) for at in range(1, len(raw))]


@pytest.mark.parametrize(("one", "other"), cuts(HEAD + b"hello" + MORE))
async def test_a_counted_response_ends_where_it_ends_in_any_pieces(one: bytes, other: bytes) -> None:
    stream = await stream_of(one, other)
    assert await read_until(stream, len(HEAD)) == HEAD
    stream.body_follows("GET", 200, [(b"Content-Length", b"5")])
    assert await read_until(stream, 5) == b"hello"


@pytest.mark.parametrize(("one", "other"), cuts(b"5;x\r\nhel\n\n\r\n0\r\nA: b\r\n\r\n" + MORE))
async def test_a_chunked_response_ends_where_it_ends_in_any_pieces(one: bytes, other: bytes) -> None:
    stream, body = await stream_of(HEAD, one, other), b"5;x\r\nhel\n\n\r\n0\r\nA: b\r\n\r\n"
    await read_until(stream, len(HEAD))
    stream.body_follows("GET", 200, [(b"Transfer-Encoding", b"chunked")])
    assert await read_until(stream, len(body)) == body


async def test_leftover_bytes_make_the_connection_unfit() -> None:
    stream = await stream_of(HEAD + b"hello")
    await read_until(stream, len(HEAD))
    stream.body_follows("GET", 200, [(b"content-length", b"5")])
    await read_until(stream, 4)
    assert not stream.get_extra_info("is_readable")
    stream = await stream_of(HEAD + b"hello" + MORE)
    await read_until(stream, len(HEAD))
    stream.body_follows("GET", 200, [(b"content-length", b"5")])
    await read_until(stream, 5)
    assert stream.get_extra_info("is_readable") is True


@pytest.mark.parametrize(
    ("raw", "breakage"),
    [
        (b"", Breakage.BROKEN),
        (HEAD[:10], Breakage.BROKEN),
        (b"HTTP/1.1 100 C\r\n\r\n" * 40, Breakage.MALFORMED),
        (b"a: b\r\n" * 20_000, Breakage.MALFORMED),
    ],
)
async def test_each_malformed_end_of_a_head_is_distinguished(raw: bytes, breakage: Breakage) -> None:
    stream = await stream_of(raw)
    with pytest.raises(WireError) as caught:
        await read_until(stream, 1 << 20)
    assert caught.value.breakage is breakage
    assert not caught.value.on_kept


async def test_silence_after_an_earlier_answer_may_be_an_old_death() -> None:
    stream = await stream_of(HEAD)
    await read_until(stream, len(HEAD))
    stream.body_follows("HEAD", 200, [(b"content-length", b"5")])
    await stream.write(b"HEAD / HTTP/1.1\r\n\r\n")
    with pytest.raises(WireError) as caught:
        await stream.read(65_536)
    assert caught.value.on_kept


async def test_closing_never_suspends() -> None:
    closings = Closings()
    inner = httpcore.AsyncMockStream([])
    closing = MessageStream(inner, "192.0.2.1", closings).aclose()
    with pytest.raises(StopIteration):
        closing.send(None)
    await closings.wait()
    with pytest.raises(httpcore.ReadError):
        await inner.read(1)
