"""Reading a hub's audit events: all of them from the oldest, or the newest few without reading what is before them.

The log is listed in the order of time, from any moment on. So the newest N are asked for in windows that reach back
from now, each 16 times as long as the one before, until one holds enough: at most a few listings, of which only the
last can hold many events more than asked for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.cli.connection.client import PAGE_MAX, Connection

_FIRST_WINDOW_S = 4.0
_GROWTH = 16
_LAST_WINDOW_S = 64 * 86_400.0


def events(connection: Connection, where: event_pb2.EventFilter) -> Iterator[event_pb2.Event]:
    """Yield every event that matches, oldest first."""
    for page in connection.pages(connection.audit.ListEvents, pb.ListEventsRequest(filter=where, page_size=PAGE_MAX)):
        yield from page.events


def newest(
    read: Callable[[event_pb2.EventFilter], Iterable[event_pb2.Event]], where: event_pb2.EventFilter, count: int
) -> list[event_pb2.Event]:
    """Return the last `count` events that match, oldest first; the filter's times bound them."""
    found: deque[event_pb2.Event] = deque(maxlen=count)
    if count == 0:
        return []
    end_ns = where.until.ToNanoseconds() if where.HasField("until") else time.time_ns()
    window_s = _FIRST_WINDOW_S
    while window_s <= _LAST_WINDOW_S:
        begin_ns = end_ns - int(window_s * 1e9)
        if begin_ns <= where.since.ToNanoseconds():
            break
        windowed = event_pb2.EventFilter()
        windowed.CopyFrom(where)
        windowed.since.FromNanoseconds(begin_ns)
        found.extend(read(windowed))
        if len(found) == count:
            return list(found)
        found.clear()
        window_s *= _GROWTH
    found.extend(read(where))
    return list(found)
