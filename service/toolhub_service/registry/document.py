"""What of a tool can be searched, field by field, and how much each field weighs.

A name counts double: its words are few and chosen. Parameter names and descriptions belong to the document at every
depth of the schema; leaving them out costs a tenth of the recall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntFlag
from typing import Final

from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolSpec


class Field(IntFlag):
    """A part of a tool; sets of them are kept as bits."""

    NAME = 1
    DESCRIPTION = 2
    ARGUMENTS = 4
    TAGS = 8
    CAPABILITIES = 16
    USAGE = 32
    """Past purposes of successful calls: not of the document, but of one tenant (`usage_index.py`)."""


FIELD_WEIGHTS: Final[Mapping[Field, float]] = {
    Field.NAME: 2.0,
    Field.DESCRIPTION: 1.0,
    Field.ARGUMENTS: 1.0,
    Field.TAGS: 1.0,
    Field.CAPABILITIES: 1.0,
}

SCHEMA_MAX_DEPTH: Final = 32
SCHEMA_MAX_TEXTS: Final = 2_000

_SUBSCHEMA_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_SUBSCHEMAS: Final = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf", "not", "then", "else")


def fields_of(spec: ToolSpec) -> dict[Field, str]:
    """The searchable text of each field; fields without any are absent."""
    texts = {
        Field.NAME: spec.name,
        Field.DESCRIPTION: spec.description,
        Field.ARGUMENTS: " ".join(argument_texts(spec.input_schema)),
        Field.TAGS: " ".join(spec.tags),
        Field.CAPABILITIES: " ".join(sorted(spec.capabilities)),
    }
    return {field: text for field, text in texts.items() if text}


def argument_texts(schema: JsonValue) -> list[str]:
    """Names and descriptions of all arguments, nested ones too; at most 2,000 texts from 32 levels."""
    texts: list[str] = []
    for text in _texts(schema, 0):
        texts.append(text)
        if len(texts) >= SCHEMA_MAX_TEXTS:
            break
    return texts


def _texts(schema: JsonValue, depth: int) -> Iterator[str]:
    if depth > SCHEMA_MAX_DEPTH:
        return
    if isinstance(schema, Mapping):
        description = schema.get("description")
        if isinstance(description, str):
            yield description
        yield from _nested_texts(schema, depth + 1)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for entry in schema:
            yield from _texts(entry, depth + 1)


def _nested_texts(schema: Mapping[str, JsonValue], depth: int) -> Iterator[str]:
    for keyword in _SUBSCHEMA_MAPS:
        children = schema.get(keyword)
        if isinstance(children, Mapping):
            for name, child in children.items():
                yield name
                yield from _texts(child, depth)
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            yield from _texts(schema[keyword], depth)
