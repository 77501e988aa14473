"""The searchable fields of a tool and their weights.

A name counts double, because its words are few and chosen. The first sentence of a description says what the tool
does; the rest, such as limits and which tool to prefer, counts half, and so do the titles of examples. Parameter
names and descriptions belong to the document at every depth of the schema; leaving them out costs a tenth of the
recall. Capabilities name permissions, not what a tool does: they are used as filters, not searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolSpec

if TYPE_CHECKING:
    pass


class Field(IntFlag):
    """A part of a tool; sets of them are stored as bits."""

    NAME = 1
    DESCRIPTION = 2
    ARGUMENTS = 4
    TAGS = 8
    USAGE = 16
    """Purposes of past successful calls: they belong to one tenant, not to the document (`usage_index.py`)."""


FIELD_WEIGHTS: Final[Mapping[Field, float]] = {
    Field.NAME: 2.0,
    Field.DESCRIPTION: 1.0,
    Field.ARGUMENTS: 1.0,
    Field.TAGS: 1.0,
}
DETAILS_WEIGHT: Final = 0.5
"""Weight of a description after its first sentence."""

SCHEMA_MAX_DEPTH: Final = 32
SCHEMA_MAX_TEXTS: Final = 2_000

_SUBSCHEMA_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_SUBSCHEMAS: Final = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf", "not", "then", "else")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|(?<=[。！？])|\n")
_NESTING: Final = frozenset({*_SUBSCHEMA_MAPS, *_SUBSCHEMAS})


def fields_of(spec: ToolSpec) -> dict[Field, str]:
    """Return the searchable text of each field; fields without any are absent."""
    texts = {
        Field.NAME: spec.name,
        Field.DESCRIPTION: "\n".join((spec.description, *(example.title for example in spec.examples))),
        Field.ARGUMENTS: " ".join(argument_texts(spec.input_schema)),
        Field.TAGS: " ".join(spec.tags),
    }
    return {field: text for field, text in texts.items() if text}


def weighted_texts(texts: Mapping[Field, str]) -> Iterator[tuple[Field, float, str]]:
    """Yield the texts of a document with their weights."""
    for field, text in texts.items():
        gain = FIELD_WEIGHTS[field]
        if field is not Field.DESCRIPTION:
            yield field, gain, text
            continue
        says, *details = _SENTENCE_END.split(text, 1)
        yield field, gain, says
        yield from ((field, gain * DETAILS_WEIGHT, detail) for detail in details)


def argument_texts(schema: JsonValue) -> list[str]:
    """Return names and descriptions of all arguments, also nested ones; at most 2,000 texts from 32 levels."""
    texts: list[str] = []
    _collect(schema, 0, texts)
    return texts[:SCHEMA_MAX_TEXTS]


def _collect(schema: JsonValue, depth: int, texts: list[str]) -> None:
    """Add the texts of a schema until there are enough."""
    if depth > SCHEMA_MAX_DEPTH or len(texts) >= SCHEMA_MAX_TEXTS:
        return
    if isinstance(schema, Mapping):
        description = schema.get("description")
        if isinstance(description, str):
            texts.append(description)
        _collect_nested(schema, depth + 1, texts)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for entry in schema:
            _collect(entry, depth + 1, texts)


def _collect_nested(schema: Mapping[str, JsonValue], depth: int, texts: list[str]) -> None:
    if _NESTING.isdisjoint(schema):
        return
    for keyword in _SUBSCHEMA_MAPS:
        children = schema.get(keyword)
        if isinstance(children, Mapping):
            for name, child in children.items():
                texts.append(name)
                _collect(child, depth, texts)
                if len(texts) >= SCHEMA_MAX_TEXTS:
                    return
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            _collect(schema[keyword], depth, texts)
