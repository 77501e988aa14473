"""Watches that go on across restarts of the hub, and what the command line says of an outage.

When a stream is opened again, and after which pause, is decided by the Python client (`toolhub_client.outages`). It is
imported with the first watch: other commands do not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from toolhub_service.cli.terminal.output import note

Item = TypeVar("Item")


def resume_watch(
    watch: Callable[[], Iterator[Item]],
    pause_max_s: float,
    disconnected: Callable[[float], object],
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Item]:
    """Yield what `watch` yields, without end: it is called again when it ends or its connection breaks.

    Also when its token expires, because a login then has a new one. `disconnected` is called with the seconds until
    then. Raises grpc.RpcError when the hub refuses the watch.
    """
    from toolhub_client.outages import Outages

    outages = Outages(longest_pause_s=pause_max_s, clock=clock)
    while True:
        ended: Exception = ConnectionError("the hub ended the watch")
        outages.open()
        try:
            for item in watch():
                outages.receive()
                yield item
        except grpc.RpcError as error:
            ended = error
        pause_s = outages.pause_s(ended)
        disconnected(pause_s)
        pause(pause_s)


def outage_text(pause_s: float) -> str:
    """Return the line that a watch shows while the hub is unreachable."""
    return f"the hub does not answer; reconnecting in {pause_s:.1f} s"


def note_outage(pause_s: float) -> None:
    note(outage_text(pause_s), err=True)
