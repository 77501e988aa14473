"""Where requests begin and end: whatever two readers could read differently is refused, however it arrives."""

from __future__ import annotations

from typing import NamedTuple

import h11
import pytest

from toolhub_service.guards.http_framing import (
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    Arrived,
    RequestFraming,
    RequestHead,
    RequestRefused,
)

HOST = b"Host: hub\r\n"
GET = b"GET /mcp HTTP/1.1\r\n" + HOST + b"\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"


def post(*fields: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST /mcp " + version + b"\r\n" + b"".join(each + b"\r\n" for each in (b"Host: hub", *fields)) + b"\r\n"


class Request(NamedTuple):
    """What was read of a request."""

    head: RequestHead | None
    content: bytes


def read(data: bytes, step: int) -> tuple[list[Request], RequestRefused | None]:
    """The requests that were read, and the refusal that ends the connection; `step` bytes arrive at once."""
    framing, requests = RequestFraming(), [Request(None, b"")]

    def add(arrived: Arrived) -> None:
        head, content = requests.pop()
        requests.append(Request(arrived.head or head, content + arrived.content))

    try:
        for at in range(0, len(data), step):
            add(framing.take(data[at : at + step]))
            while framing.is_whole:
                requests.append(Request(None, b""))
                add(framing.go_on())
    except RequestRefused as refused:
        return [each for each in requests if each.head], refused
    return [each for each in requests if each.head], None


def as_another_reads(request: bytes) -> h11.Request:
    """The head of a request as h11 reads it."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(request)
    head = connection.next_event()
    assert isinstance(head, h11.Request)
    return head


REFUSED: dict[str, tuple[int, bytes]] = {
    # Content-Length beside Transfer-Encoding (RFC 9112 §6.1)
    "a length and chunks": (400, post(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED),
    "chunks and a length": (400, post(b"Transfer-Encoding: chunked", b"Content-Length: 0") + b"0\r\n\r\n"),
    "a length of zero and chunks": (400, post(b"content-length:0", b"transfer-encoding:chunked") + b"0\r\n\r\n"),
    # more than one framing
    "two lengths that differ": (400, post(b"Content-Length: 5", b"Content-Length: 0")),
    "two equal lengths": (400, post(b"Content-Length: 0", b"content-length: 0")),
    "lengths in a list": (400, post(b"Content-Length: 5, 5")),
    "two codings": (400, post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity")),
    "codings in a list": (501, post(b"Transfer-Encoding: gzip, chunked")),
    "chunked twice": (501, post(b"Transfer-Encoding: chunked, chunked")),
    "identity": (501, post(b"Transfer-Encoding: identity")),
    "a coding that looks like chunked": (501, post(b"Transfer-Encoding: xchunked")),
    "a coding with a parameter": (501, post(b"Transfer-Encoding: chunked;q=1")),
    "a coding in quotes": (501, post(b'Transfer-Encoding: "chunked"')),
    "a coding behind a vertical tab": (400, post(b"Transfer-Encoding: \x0bchunked")),
    "an empty coding": (501, post(b"Transfer-Encoding:")),
    "chunks in HTTP/1.0": (400, post(b"Transfer-Encoding: chunked", version=b"HTTP/1.0")),
    # lengths that are no numbers
    "a length with a sign": (400, post(b"Content-Length: +5")),
    "a negative length": (400, post(b"Content-Length: -1")),
    "a length in hexadecimal": (400, post(b"Content-Length: 0x5")),
    "a length with an underscore": (400, post(b"Content-Length: 1_0")),
    "a length of many digits": (400, post(b"Content-Length: " + b"9" * 19)),
    "an empty length": (400, post(b"Content-Length: ")),
    "a length in other digits": (400, post(b"Content-Length: \xd9\xa5")),
    # ends of lines
    "bare LF": (400, GET.replace(b"\r\n", b"\n")),
    "bare LF behind the first line": (400, GET.replace(b"\r\n", b"\n", 1)),
    "bare LF inside of a value": (400, post(b"X: a\nContent-Length: 5")),
    "bare CR inside of a value": (400, post(b"X: a\rContent-Length: 5")),
    "bare CR before the end of a line": (400, post(b"X: a\r")),
    "NUL in a value": (400, post(b"X: a\0b")),
    "CR LF before the request": (400, b"\r\n" + GET),
    "a blank before the request": (400, b" " + GET),
    # versions and the first line
    "HTTP/9.9": (505, GET.replace(b"HTTP/1.1", b"HTTP/9.9")),
    "HTTP/2.0": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/1.2": (505, GET.replace(b"HTTP/1.1", b"HTTP/1.2")),
    "HTTP/0.9": (400, b"GET /mcp\r\n\r\n"),
    "HTTP/1.10": (400, GET.replace(b"HTTP/1.1", b"HTTP/1.10")),
    "http/1.1 in lower case": (400, GET.replace(b"HTTP/1.1", b"http/1.1")),
    "two blanks": (400, GET.replace(b"GET ", b"GET  ")),
    "a tab in the first line": (400, GET.replace(b"GET ", b"GET\t")),
    "a blank in the target": (400, GET.replace(b"/mcp", b"/mcp /x")),
    "an absolute target": (400, GET.replace(b"/mcp", b"http://elsewhere/mcp")),
    "an authority": (400, b"CONNECT elsewhere:443 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a fragment": (400, GET.replace(b"/mcp", b"/mcp#x")),
    "a target beyond ASCII": (400, GET.replace(b"/mcp", b"/m\xc3\xa9")),
    "a method that is no token": (400, GET.replace(b"GET", b"G(T")),
    # fields
    "a folded line": (400, post(b"X: a", b" Content-Length: 5")),
    "a folded line with a tab": (400, post(b"Transfer-Encoding:", b"\tchunked")),
    "a folded first line": (400, b"GET /mcp HTTP/1.1\r\n Host: hub\r\n\r\n"),
    "a blank before the colon": (400, post(b"Content-Length : 5")),
    "a tab before the colon": (400, post(b"Transfer-Encoding\t: chunked")),
    "a field without a colon": (400, post(b"Content-Length")),
    "a field without a name": (400, post(b": 5")),
    "a name that is no token": (400, post(b"Content(Length: 5")),
    "no host": (400, b"GET /mcp HTTP/1.1\r\n\r\n"),
    "two hosts": (400, post(b"Host: elsewhere")),
    "two equal hosts": (400, post(b"Host: hub")),
    "hosts in a list": (400, b"GET /mcp HTTP/1.1\r\nHost: hub, elsewhere\r\n\r\n"),
    "a long head": (431, post(b"X: " + b"x" * HEAD_MAX_BYTES)),
    "a head without end": (431, b"GET /mcp HTTP/1.1\r\nX: " + b"x" * HEAD_MAX_BYTES),
    "many fields": (431, post(*[b"X: y"] * FIELDS_MAX)),
}
CHUNKED = post(b"Transfer-Encoding: chunked")
REFUSED_CHUNKS = {
    "a size with a prefix": b"0x5\r\nabcde\r\n0\r\n\r\n",
    "a size with a sign": b"+5\r\nabcde\r\n0\r\n\r\n",
    "a size that overflows": b"100000000\r\nabcde\r\n0\r\n\r\n",
    "a size that overflows 64 bits": b"10000000000000005\r\nabcde\r\n0\r\n\r\n",
    "a blank behind the size": b"5 \r\nabcde\r\n0\r\n\r\n",
    "no size": b"\r\nabcde\r\n0\r\n\r\n",
    "an extension alone": b";x=y\r\nabcde\r\n0\r\n\r\n",
    "a size that ends with LF": b"5\nabcde\r\n0\r\n\r\n",
    "an extension that ends with LF": b"5;x\nabcde\r\n0\r\n\r\n",
    "an extension with a bare CR": b"5;x\ry\r\nabcde\r\n0\r\n\r\n",
    "a long extension": b"5;" + b"x" * 300 + b"\r\nabcde\r\n0\r\n\r\n",
    "an extension without end": b"5;" + b"x" * 300,
    "more content than its size": b"5\r\nabcdefg\r\n0\r\n\r\n",
    "content that ends with LF": b"5\r\nabcde\n0\r\n\r\n",
    "an end that ends with LF": b"5\r\nabcde\r\n0\n\r\n",
    "trailers that end with LF": b"0\r\nX: y\n\r\n",
    "a folded trailer": b"0\r\nX: y\r\n z\r\n\r\n",
    "trailers without end": b"0\r\n" + b"X: y\r\n" * 1_000,
    "very many small chunks": b"1\r\nx\r\n" * 1_100,
}


@pytest.mark.parametrize("step", [1, 7, 2**20])
@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_can_be_read_in_two_ways_is_refused(name: str, step: int) -> None:
    status, request = REFUSED[name]
    requests, refused = read(request, step)
    assert requests == []
    assert refused is not None
    assert refused.status == status, refused.message


@pytest.mark.parametrize("step", [1, 7, 2**20])
@pytest.mark.parametrize("name", REFUSED_CHUNKS)
def test_chunks_that_can_be_read_in_two_ways_are_refused(name: str, step: int) -> None:
    requests, refused = read(CHUNKED + REFUSED_CHUNKS[name] + SMUGGLED, step)
    assert refused is not None
    assert refused.status == 400
    assert not any(each.head and b"smuggled" in each.head.target for each in requests)


ACCEPTED: dict[str, tuple[bytes, bytes]] = {
    "a GET": (GET, b""),
    "HTTP/1.0": (b"GET /mcp HTTP/1.0\r\n\r\n", b""),
    "a length": (post(b"Content-Length: 5") + b"abcde", b"abcde"),
    "a length of zero": (post(b"Content-Length: 0"), b""),
    "blanks around a value": (post(b"Content-Length: \t 5 \t") + b"abcde", b"abcde"),
    "an empty value": (post(b"X:", b"Content-Length: 5") + b"abcde", b"abcde"),
    "a value beyond ASCII": (post(b"X: \xc3\xa9", b"Content-Length: 5") + b"abcde", b"abcde"),
    "content that looks like a request": (post(b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED, SMUGGLED),
    "chunks": (CHUNKED + b"5\r\nabcde\r\n00a\r\n0123456789\r\n0\r\n\r\n", b"abcde0123456789"),
    "CHUNKED": (post(b"TRANSFER-ENCODING: CHUNKED") + b"5\r\nabcde\r\n0\r\n\r\n", b"abcde"),
    "extensions": (CHUNKED + b'5;name=value\r\nabcde\r\n0 ; a="b c"\r\n\r\n', b"abcde"),
    "trailers": (CHUNKED + b"5\r\nabcde\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n", b"abcde"),
    "a small chunk now and then": (CHUNKED + b"1\r\nx\r\n" * 900 + b"0\r\n\r\n", b"x" * 900),
}


@pytest.mark.parametrize("step", [1, 7, 2**20])
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_strict_request_is_read_as_another_parser_reads_it_with_nothing_behind_it(name: str, step: int) -> None:
    request, content = ACCEPTED[name]
    (first, second), refused = read(request + GET, step)
    assert refused is None
    theirs = as_another_reads(request.replace(b"CHUNKED", b"chunked"))
    assert first.head is not None
    assert (first.head.method.encode(), first.head.target) == (theirs.method, theirs.target)
    assert first.head.version.encode() == theirs.http_version
    assert [(name, value.replace(b"CHUNKED", b"chunked")) for name, value in first.head.fields] == theirs.headers
    assert first.content == content
    assert second == read(GET, 2**20)[0][0]


def test_requests_are_read_one_at_a_time_whatever_has_arrived() -> None:
    framing = RequestFraming()
    assert framing.take(GET * 1_000).head is not None
    assert framing.is_whole
    assert framing.take(b"") == (None, b"")
    assert framing.go_on().head is not None
    assert framing.held_bytes == 998 * len(GET)


def test_the_content_of_many_chunks_is_read_at_once() -> None:
    framing = RequestFraming()
    framing.take(CHUNKED)
    assert framing.take(b"2\r\nab\r\n" * 500) == (None, b"ab" * 500)
