"""What the commands of pins ask of a hub."""

from __future__ import annotations

from collections.abc import Iterator

from toolhub.v1 import approval_pb2, pin_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.cli.connection import Connection, HubRefused

_PAGE = 1_000
_DIGEST_MIN_CHARS = 8


def listed(connection: Connection, where: pb.ListPinsRequest, count: int) -> tuple[list[pin_pb2.Pin], int]:
    """(the newest `count` that fit, how many fit)."""
    found: list[pin_pb2.Pin] = []
    total = 0
    for page in _pages(connection, where, count):
        found.extend(page.pins)
        total = page.total_size
        if len(found) >= count:
            break
    return found[:count], max(total, len(found[:count]))


def whole(connection: Connection, where: pb.ListPinsRequest) -> list[pin_pb2.Pin]:
    """All that fit, newest first, with definition and difference."""
    where.view = tool_pb2.TOOL_VIEW_FULL
    return [pin for page in _pages(connection, where, _PAGE) for pin in page.pins]


def the_one(connection: Connection, tool: str, digest: str) -> pin_pb2.Pin:
    """The pin of this tool whose digest begins so; without a digest the newest that waits, else the newest.

    Raises HubRefused.
    """
    if digest and len(digest) < _DIGEST_MIN_CHARS:
        raise HubRefused(f"--digest needs {_DIGEST_MIN_CHARS} characters at least")
    pins = [pin for pin in whole(connection, pb.ListPinsRequest(tool=tool)) if pin.tool == tool]
    fitting = [pin for pin in pins if pin.digest.startswith(digest)]
    if not pins:
        raise HubRefused(f"No definition of {tool!r} was pinned; `toolhub pins list --state all` names those that were")
    if not fitting:
        raise HubRefused(f"{tool} was seen as {', '.join(pin.digest[:12] for pin in pins)}, never as {digest}")
    if digest and len(fitting) > 1:
        raise HubRefused(f"{digest} is the beginning of several digests; give more of it")
    return next((pin for pin in fitting if is_pending(pin)), fitting[0])


def decide(
    connection: Connection, pin: pin_pb2.Pin, decision: approval_pb2.Decision.ValueType, comment: str
) -> pin_pb2.Pin:
    """Decides exactly what was shown: the digest goes with it."""
    request = pb.DecidePinRequest(
        source=pin.source, tool=pin.tool, digest=pin.digest, decision=decision, comment=comment
    )
    answer = connection.registry.DecidePin(request, timeout=connection.timeout_s, metadata=connection.metadata)
    return answer.pin


def is_pending(pin: pin_pb2.Pin) -> bool:
    return pin.state == pin_pb2.PIN_STATE_PENDING


def _pages(connection: Connection, where: pb.ListPinsRequest, count: int) -> Iterator[pb.ListPinsResponse]:
    where.page_size = min(count, _PAGE)
    while True:
        page = connection.registry.ListPins(where, timeout=connection.timeout_s, metadata=connection.metadata)
        yield page
        if not page.next_page_token:
            return
        where.page_token = page.next_page_token
