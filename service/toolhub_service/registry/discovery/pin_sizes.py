"""The total size of a source's stored definitions that nobody has approved.

The store and the cost of reading it grow with them, so they are bounded for each source. Each is measured once, by
its digest.
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
    """The sizes of one source's definitions."""

    def __init__(self) -> None:
        self._of_digest: dict[str, int] = {}

    def waiting_bytes(self, pins: Iterable[Pin]) -> Generator[None, None, int]:
        """Return the size of waiting and superseded definitions; yields after each one that it had to measure."""
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


# The reasons shown for a tool that may not be called, and what an operator can do.
