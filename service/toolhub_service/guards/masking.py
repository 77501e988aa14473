"""Known values taken out of what was read, and nothing else: for text whose wording counts, such as a definition.

The redactor also judges by names and shapes, and by what the whole hub knows; a schema with a property `password` would
lose it, and a digest over the text would change whenever the hub learnt something. A mask hides the values that it was
made with, in every usual spelling, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import re2

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_patterns import known_pattern
from toolhub_service.guards.secrets import MARK

_MARK: Final = MARK.encode()


class Mask:
    """Safe to share between threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        pattern = known_pattern(values)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        self._known = re2.compile(pattern, options) if pattern else None

    def finds(self, data: bytes) -> bool:
        """Whether one of the values occurs in the text (UTF-8, or JSON)."""
        return self._known is not None and self._known.search(data) is not None

    def text(self, text: str) -> str:
        if self._known is None:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return cast(bytes, self._known.sub(_MARK, data)).decode("utf-8", "surrogatepass")

    def object(self, value: JsonObject) -> JsonObject:
        """Names and values of all levels; no deeper than the interpreter recurses, which is the caller's to know."""
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
