"""Removes known values and nothing else, for text whose exact wording matters, such as a definition.

The redactor also uses names and forms, and everything that the hub knows: it would remove a property `password` from
a schema, and a digest over the text would change whenever the hub learned a secret. A mask hides only the values that
it was created with, in every usual form, wherever they occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import re2

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_spellings import known_spellings
from toolhub_service.guards.secrets import MARK_BYTES

_CUT_MIN_BYTES: Final = 4


class Mask:
    """Safe to share between threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._spellings = known_spellings(values)
        pattern = b"|".join(map(re2.escape, self._spellings))
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        self._known = re2.compile(pattern, options) if pattern else None
        self.longest_bytes = len(pattern)
        """Length of the longest form of a value."""

    def finds(self, data: bytes) -> bool:
        """Return whether one of the values occurs in the text (UTF-8, or JSON)."""
        return self._known is not None and self._known.search(data) is not None

    def text(self, text: str) -> str:
        if self._known is None:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return cast(bytes, self._known.sub(MARK_BYTES, data)).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        return data if self._known is None else cast(bytes, self._known.sub(MARK_BYTES, data))

    def cut(self, data: bytes) -> bytes:
        """As `data`, for text that was cut: the beginning of a value at its end is hidden, too. Otherwise whoever
        chooses the place of the cut could read all but the last letter."""
        data = self.data(data)
        cuts = filter(None, (_beginning_at_end(spelling, data) for spelling in self._spellings))
        longest = max(cuts, default=0)
        return data[:-longest] + MARK_BYTES if longest else data

    def object(self, value: JsonObject) -> JsonObject:
        """Mask names and values at all levels; the caller ensures that the depth stays within the interpreter's
        recursion limit."""
        return {self.text(name): self.value(member) for name, member in value.items()}

    def value(self, value: JsonValue) -> JsonValue:
        """As `object`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self.object(value)
        if isinstance(value, Sequence):
            return [self.value(item) for item in value]
        return value


def _beginning_at_end(spelling: bytes, data: bytes) -> int:
    """Return how many bytes of the form's beginning the data ends with; 0 when too few to reveal anything."""
    tail = data[-len(spelling) :]
    place = tail.find(spelling[:_CUT_MIN_BYTES])
    while place >= 0:
        if spelling.startswith(tail[place:]):
            return len(tail) - place
        place = tail.find(spelling[:_CUT_MIN_BYTES], place + 1)
    return 0
