"""What of a tool can be searched, field by field, and how much each field weighs.

A name counts double: its words are few and chosen. Parameter names and descriptions belong to the document at every
depth of the schema; leaving them out costs a tenth of the recall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_NESTING: Final = frozenset({*_SUBSCHEMA_MAPS, *_SUBSCHEMAS})


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
    _collect(schema, 0, texts)
    return texts[:SCHEMA_MAX_TEXTS]


def _collect(schema: JsonValue, depth: int, texts: list[str]) -> None:
    """Add the texts of a schema; no more of them once there are enough."""
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
