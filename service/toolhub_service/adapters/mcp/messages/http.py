"""Requests and responses of HTTP as plain values, which cost a call less than those of a client library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx2
import msgspec

from toolhub_service.adapters.mcp.messages.exchanges import OPEN, Exchange
from toolhub_service.egress.bodies import Pull

Origin = tuple[str, str, int]
"""Scheme, host and port."""
Fields = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values, as they arrived."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class Place(msgspec.Struct, frozen=True):
    """Where a request goes."""

    url: str
    origin: Origin
    host: str
    """Name or address to connect to, in ASCII."""
    authority: str
    """Value of the Host header."""
    target: str
    """Path and query."""


class Times(msgspec.Struct, frozen=True):
    """How long the parts of an exchange may take, in seconds; None: without limit."""

    connect_s: float
    read_s: float | None
    """Without a byte of the response."""
    write_s: float
    pool_s: float
    """Until a connection is free."""


NORMAL: Final = Times(connect_s=10.0, read_s=None, write_s=30.0, pool_s=10.0)


def same_times(seconds: float) -> Times:
    return Times(seconds, seconds, seconds, seconds)


def origin_of(url: httpx2.URL) -> Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def place_of(url: str | httpx2.URL) -> Place:
    """Raises httpx2.InvalidURL."""
    parsed = httpx2.URL(url)
    return Place(
        url=str(parsed),
        origin=origin_of(parsed),
        host=parsed.raw_host.decode("ascii"),
        authority=parsed.netloc.decode("ascii"),
        target=parsed.raw_path.decode("ascii"),
    )


@dataclass(slots=True, eq=False)
class HttpRequest:
    """A request. Its fields do not hold Host and Content-Length."""

    method: str
    place: Place
    fields: dict[str, str]
    """Names in lower case."""
    content: bytes = b""
    times: Times = NORMAL
    exchange: Exchange = field(default=OPEN)


@dataclass(slots=True, eq=False)
class HttpResponse:
    """A response whose body is still to be read."""

    status: int
    fields: Fields
    pull: Pull
    """Raises WireError."""
    close: Callable[[], None]
    """Closes the connection, unless the body was read to its end."""


class Events(Protocol):
    """An event stream, decoded and bounded."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Answer:
    """A response within all bounds: read to its end, or an event stream."""

    status: int
    fields: Fields
    """Those of the message; none describes how it was sent."""
    content: bytes = b""
    events: Events | None = None

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


class Transport(Protocol):
    """Sends requests, and never raises for failures of the network or the server."""

    async def send(self, request: HttpRequest) -> Answer: ...


def field_in(fields: Fields, name: bytes) -> str:
    """Return the values of a field, joined by commas; empty without one."""
    values = [value for known, value in fields if known == name]
    return b", ".join(values).decode("utf-8", "replace") if values else ""


def is_redirect(status: int, fields: Fields) -> bool:
    return status in _REDIRECTS and any(name == b"location" for name, _ in fields)
