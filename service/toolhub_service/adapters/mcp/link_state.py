"""What the connections of one link share: terms, transport, listeners, and the resources that are watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from toolhub_service.adapters.mcp.kind import McpTerms
from toolhub_service.adapters.mcp.questions.relay import Running
from toolhub_service.adapters.mcp.transports.http import HttpTransport
from toolhub_service.domain.ports import Randomness

WATCHED_MAX = 1_000


class Watched:
    """Resources whose changes the server should report; beyond `WATCHED_MAX` the oldest are dropped."""

    def __init__(self) -> None:
        self.uris: dict[str, asyncio.Event] = {}
        """By URI, an event that is set once the server has been asked."""
        self.changed = asyncio.Event()

    def add(self, uri: str) -> asyncio.Event:
        if uri not in self.uris:
            if len(self.uris) >= WATCHED_MAX:
                # Drop the oldest: a client that still wants it subscribes again at its next read.
                del self.uris[next(iter(self.uris))]
            self.uris[uri] = asyncio.Event()
            self.changed.set()
        return self.uris[uri]


@dataclass(frozen=True, slots=True)
class Deps:
    """What the connections of one link share."""

    terms: McpTerms
    http: HttpTransport | None
    """None for stdio."""
    randomness: Randomness
    changed: Callable[[], None]
    resource_changed: Callable[[str], None]
    """Called with the URI; an empty one stands for the list of resources."""
    watched: Watched
    running: Running = field(default_factory=Running)
