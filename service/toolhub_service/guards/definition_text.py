"""All text of a remote definition, prepared for pattern search: each text on its own lines, each sentence on one line.

Poison can be anywhere that a model reads: descriptions, titles, names of parameters, enum values, defaults, comments
of a schema ("full-schema poisoning"). So every text is read, keys too, without recursion and up to a limit. Wrapped
sentences are joined and hidden characters removed, so that patterns can ignore both.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.foreign_text import is_hidden

TEXT_MAX_CHARS: Final = 64 * 1024
"""Limit for one definition. The largest of 872 published ones has 7,534."""
PLACE_MAX_CHARS: Final = 120

_SPACES: Final = re.compile(r"\s+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\s*\n(?:\s*\n|\s*(?:[-*•>#]|\d+[.)])\s)\s*")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
# Latin letters in other forms: wide, circled, bold … Only these are replaced by plain ones; folding other characters
# can yield 18 letters each.
_STYLED: Final = re.compile("[\u2100-\u214f\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff]+")
_NAME_SEPARATORS: Final = re.compile(r"[_\-.]+|(?<=[a-z])(?=[A-Z])")


class Text(msgspec.Struct, frozen=True):
    place: str
    """A path such as `inputSchema.properties.path.description`; untrusted, cut."""
    raw: str
    is_name: bool = False
    """Whether it is a key of an object, such as a parameter's name."""


class Document(msgspec.Struct, frozen=True):
    """Every text of a definition as lines."""

    lines: str
    texts: tuple[Text, ...]
    starts: tuple[int, ...]
    """Where each text begins in `lines`."""
    is_whole: bool
    """False: there was more text than is checked."""

    def text_at(self, offset: int) -> Text:
        return self.texts[max(bisect_right(self.starts, offset) - 1, 0)]


def document_of(definition: JsonObject) -> Document:
    """Return the texts of a definition; linear in the text read, which is at most `TEXT_MAX_CHARS`."""
    texts: list[Text] = []
    left = TEXT_MAX_CHARS
    for text in _texts(definition):
        left -= len(text.raw) + 1
        if left < 0:
            return lay_out_texts(texts, is_whole=False)
        texts.append(text)
    return lay_out_texts(texts, is_whole=True)


def lay_out_texts(texts: Sequence[Text], *, is_whole: bool) -> Document:
    starts: list[int] = []
    pieces: list[str] = []
    at = 0
    for text in texts:
        piece = _sentences(text) + "\n"
        starts.append(at)
        pieces.append(piece)
        at += len(piece)
    return Document("".join(pieces), tuple(texts), tuple(starts), is_whole)


def _sentences(text: Text) -> str:
    seen = text.raw
    if not seen.isascii():
        kept = _BEYOND_ASCII.sub(lambda run: "".join(char for char in run.group() if not is_hidden(char)), seen)
        seen = _STYLED.sub(lambda run: unicodedata.normalize("NFKC", run.group()), kept)
    if text.is_name:
        return f"{seen} {_NAME_SEPARATORS.sub(' ', seen)}"
    return "\n".join(_SPACES.sub(" ", sentence) for sentence in _SENTENCE_END.split(seen))


def _texts(definition: JsonObject) -> Iterator[Text]:
    """Yield texts in document order as far as a stack allows: a value's own texts before those of the values after
    it."""
    waiting: list[tuple[str, JsonValue]] = [("", definition)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            yield Text(place, value)
        elif isinstance(value, Mapping):
            for key in value:
                yield Text(_below(place, key), key, is_name=True)
            waiting.extend((_below(place, key), value[key]) for key in reversed(list(value)))
        elif isinstance(value, Sequence):
            waiting.extend((place, entry) for entry in reversed(value))


def _below(place: str, key: str) -> str:
    below = f"{place}.{key[:PLACE_MAX_CHARS]}" if place else key[:PLACE_MAX_CHARS]
    return below if len(below) <= PLACE_MAX_CHARS else "…" + below[-(PLACE_MAX_CHARS - 1) :]
