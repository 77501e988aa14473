"""How many bytes the definitions take that a source has made the hub keep and nobody has approved.

A store and every reading of it grow with them, so they are bounded for each source. A digest names one definition:
each is measured once.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from typing import Final

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinState

_UNWANTED: Final = frozenset({PinState.PENDING, PinState.SUPERSEDED})


def size_bytes(definition: JsonObject) -> int:
    return len(json.dumps(definition, separators=(",", ":")))


class PinSizes:
    """Of one source."""

    def __init__(self) -> None:
        self._of_digest: dict[str, int] = {}

    def waiting_bytes(self, pins: Iterable[Pin]) -> Generator[None, None, int]:
        """Of those that wait for a decision, and of those that another took the place of; it yields after each that
        it had to measure."""
        known, sizes = self._of_digest, {}
        for pin in pins:
            if pin.state in _UNWANTED:
                size = known.get(pin.digest)
                if size is None:
                    size = size_bytes(pin.definition)
                    yield
                sizes[pin.digest] = size
        self._of_digest = sizes
        return sum(sizes.values())
