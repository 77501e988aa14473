"""JSON that an upstream sent, read strictly, and beside other calls where it is large.

A parser holds the interpreter while it makes its objects, so that bytes alone bound nothing: structure is counted first
(schema/structure.py). What is large is read in a thread that takes short turns with the event loop, one in the process
at a time, for small values take twenty times the room of their text.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.registry.turns import in_thread
from toolhub_service.schema.strict_json import MAX_DEPTH, loads
from toolhub_service.schema.structure import Structure, bound_structure, has_little, lexical_depth

MOST: Final = Structure(containers=250_000, members=300_000, separators=1_500_000)
"""Of one body: a parser makes it in under a tenth of a second. Four megabytes of records or coordinates have less."""
AT_ONCE_BYTES: Final = 32 * 1024
"""Read at once, whatever it holds."""
LIGHT_BYTES: Final = 1024 * 1024
"""Read at once where it holds few values."""


class JsonBodies:
    """Of one event loop: whoever reads large ones waits for those before."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
        """The value. Raises ToolFailure INVALID_INPUT for what is no strict JSON, too deep, or of too many values."""
        if not is_large(data):
            return loads(data, max_bytes=len(data), max_depth=max_depth)
        async with self._reading:
            return await in_thread(_read, data, max_depth)


def is_large(data: bytes) -> bool:
    """Whether it would hold the event loop to read it or what was made of it."""
    return len(data) > AT_ONCE_BYTES and (len(data) > LIGHT_BYTES or not has_little(data))


def _read(data: bytes, max_depth: int) -> JsonValue:
    bound_structure(data, MOST)
    if lexical_depth(data, max_depth) > max_depth:
        raise refuse(ErrorKind.INVALID_INPUT, f"The JSON is nested deeper than {max_depth} levels.", reason="too_deep")
    return loads(data, max_bytes=len(data), max_depth=max_depth)
