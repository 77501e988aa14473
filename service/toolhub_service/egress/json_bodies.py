"""JSON from an upstream, parsed in a thread where it is large; what strict parsers refuse is repaired where that is
possible.

A parser holds the interpreter while it makes its objects, so a limit on bytes alone does not help: structure is
counted first (schema/json_structure.py). A large value is parsed in a thread that often yields to the event loop, one
at a time in the process, because small values take twenty times the memory of their text.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.schema.json_structure import Structure, bound_structure, has_little, lexical_depth
from toolhub_service.schema.repaired_json import Repaired, loads_repaired
from toolhub_service.schema.strict_json import MAX_DEPTH

MOST: Final = Structure(containers=250_000, members=300_000, separators=1_500_000)
"""Per body: a parser takes less than a tenth of a second for it. Four megabytes of records or coordinates have less."""
AT_ONCE_BYTES: Final = 32 * 1024
"""Parsed at once, whatever it holds."""
LIGHT_BYTES: Final = 1024 * 1024
"""Parsed at once if it holds few values."""


class JsonBodies:
    """Parser for one event loop, which parses large bodies one after another."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, data: bytes, *, max_depth: int = MAX_DEPTH) -> Repaired:
        """Return the value, and what was repaired in its text. Raises ToolFailure INVALID_INPUT for what is no JSON at
        all, too deep a value, or too many values."""
        if not is_large(data):
            return loads_repaired(data, max_bytes=len(data), max_depth=max_depth)
        async with self._reading:
            return await in_thread(_read, data, max_depth)


def is_large(data: bytes) -> bool:
    """Return whether parsing it, or processing the value, would block the event loop."""
    return len(data) > AT_ONCE_BYTES and (len(data) > LIGHT_BYTES or not has_little(data))


def _read(data: bytes, max_depth: int) -> Repaired:
    bound_structure(data, MOST)
    if lexical_depth(data, max_depth) > max_depth:
        raise refuse(ErrorKind.INVALID_INPUT, f"The JSON is nested deeper than {max_depth} levels.", reason="too_deep")
    return loads_repaired(data, max_bytes=len(data), max_depth=max_depth)
