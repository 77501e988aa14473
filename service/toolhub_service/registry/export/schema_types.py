"""The types behind a JSON Schema, as far as type systems of programming languages have them.

What types cannot express (patterns, ranges, conditions, `not`) is left out, so a type admits at least what the schema
does; a schema without anything a type can express, or one that is too large, becomes `UNKNOWN`. Schemas are untrusted,
so the number of types and their depth are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from toolhub_service.domain.json import JsonObject, JsonValue

TYPES_MAX: Final = 400
"""Most types of one schema; the rest of it is UNKNOWN."""
_DEPTH_MAX: Final = 12
_LITERALS_MAX: Final = 64
_LITERAL_CHARS_MAX: Final = 200
_DEFINITIONS: Final = "#/$defs/"

Scalar: TypeAlias = Literal["string", "integer", "number", "boolean", "null"]
_SCALARS: Final[Mapping[str, Scalar]] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


class Unknown(msgspec.Struct, frozen=True):
    """Any value."""


class Primitive(msgspec.Struct, frozen=True):
    of: Scalar


class Literals(msgspec.Struct, frozen=True):
    values: tuple[str | int | bool | None, ...]


class Array(msgspec.Struct, frozen=True):
    item: Type


class Record(msgspec.Struct, frozen=True):
    """An object whose members have arbitrary names and one type."""

    value: Type


class Union(msgspec.Struct, frozen=True):
    options: tuple[Type, ...]


class Reference(msgspec.Struct, frozen=True):
    """A reference to one of the definitions."""

    name: str


class Member(msgspec.Struct, frozen=True):
    type: Type
    is_required: bool
    description: str = ""


class Object(msgspec.Struct, frozen=True):
    members: Mapping[str, Member]
    is_open: bool
    """Whether further members are allowed."""


Type: TypeAlias = Unknown | Primitive | Literals | Array | Record | Union | Reference | Object
UNKNOWN: Final = Unknown()


class SchemaTypes(msgspec.Struct, frozen=True):
    root: Type
    definitions: Mapping[str, Type]
    """Definitions that are referred to, by name."""


def types_of(schema: JsonObject) -> SchemaTypes:
    """Return the types of a schema; never fails, whatever the schema contains."""
    reading = _Reading(_mapping(schema.get("$defs")))
    root = reading.type_of(schema, 0)
    while reading.waiting:
        name = reading.waiting.pop()
        reading.definitions[name] = reading.type_of(reading.sources[name], 0)
    return SchemaTypes(root, dict(sorted(reading.definitions.items())))


@dataclass(slots=True)
class _Reading:
    sources: Mapping[str, JsonValue]
    definitions: dict[str, Type] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    _count: int = 0

    def type_of(self, schema: JsonValue, depth: int) -> Type:
        self._count += 1
        if not isinstance(schema, Mapping) or depth > _DEPTH_MAX or self._count > TYPES_MAX:
            return UNKNOWN
        if "$ref" in schema:
            return self._resolve_reference(schema["$ref"])
        if "const" in schema or "enum" in schema:
            return _literals([schema["const"]] if "const" in schema else _sequence(schema["enum"]))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._union(_sequence(schema[keyword]), depth)
        if "allOf" in schema:
            every = _sequence(schema["allOf"])
            # Python has no intersection types; a reference with a description is an `allOf` of one part.
            return self.type_of(every[0], depth + 1) if len(every) == 1 and "properties" not in schema else UNKNOWN
        return self._by_type(schema, depth)

    def _by_type(self, schema: JsonObject, depth: int) -> Type:
        of = schema.get("type")
        if isinstance(of, list):
            return self._union([{**schema, "type": each} for each in of], depth)
        if of is None and "properties" in schema:
            of = "object"
        if of == "array":
            return Array(self.type_of(schema.get("items"), depth + 1))
        if of == "object":
            return self._object(schema, depth)
        return Primitive(_SCALARS[of]) if isinstance(of, str) and of in _SCALARS else UNKNOWN

    def _object(self, schema: JsonObject, depth: int) -> Type:
        properties, more = _mapping(schema.get("properties")), schema.get("additionalProperties")
        if not properties and more is not False:
            return Record(UNKNOWN if more is None else self.type_of(more, depth + 1))
        required = {name for name in _sequence(schema.get("required")) if isinstance(name, str)}
        members = {}
        for name, each in properties.items():
            description = each.get("description") if isinstance(each, Mapping) else ""
            members[name] = Member(
                self.type_of(each, depth + 1), name in required, description if isinstance(description, str) else ""
            )
        return Object(members, is_open=more is not False)

    def _union(self, schemas: Sequence[JsonValue], depth: int) -> Type:
        options: list[Type] = []
        for each in schemas:
            found = self.type_of(each, depth + 1)
            # A union with an unknown part is unknown: any value may match that part.
            if isinstance(found, Unknown):
                return UNKNOWN
            if found not in options:
                options.append(found)
        if not options:
            return UNKNOWN
        return options[0] if len(options) == 1 else Union(tuple(options))

    def _resolve_reference(self, reference: JsonValue) -> Type:
        name = reference[len(_DEFINITIONS) :] if isinstance(reference, str) else ""
        if reference != f"{_DEFINITIONS}{name}" or name not in self.sources:
            return UNKNOWN
        if name not in self.definitions:
            # Registered before it is read: a definition may refer to itself.
            self.definitions[name] = UNKNOWN
            self.waiting.append(name)
        return Reference(name)


def _literals(values: Sequence[JsonValue]) -> Type:
    """Return the literals; floats are literals in no type system, and long texts make unreadable types."""
    if not values or len(values) > _LITERALS_MAX:
        return UNKNOWN
    kept: list[str | int | bool | None] = []
    for value in values:
        if not (value is None or isinstance(value, str | int)) or len(str(value)) > _LITERAL_CHARS_MAX:
            return UNKNOWN
        kept.append(value)
    return Literals(tuple(kept))


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
