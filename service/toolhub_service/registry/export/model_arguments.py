"""Arguments that a model wrote for an exported definition, as the tool's own schema has them.

The walk follows the arguments and, beside them, all subschemas that may apply there: behind references, and every
branch of a combinator. Arguments in the tool's own words pass unchanged, so a caller that knows them may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.registry.export.closed_schemas import text_of_member
from toolhub_service.registry.export.schema_repairs import MAX_DEPTH, branches, dereference, mapping, sequence

_IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
_ALL: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_PLACES_MAX: Final = 64


class Reading(NamedTuple):
    """What is turned back."""

    names: Mapping[str, str] = {}
    """The property behind each name that stands for one."""
    drops_nulls: bool = False
    """Whether null says of an optional property that it is left out."""
    drops_unfit_nulls: bool = False
    """The same, but only where the property cannot be null."""
    reads_texts: bool = False
    """Whether a text may hold JSON where the tool accepts no text."""
    reads_fitting_texts: bool = False
    """Whether a text may hold the JSON of an object or list also where the tool accepts a text."""
    reads_members: bool = False
    """Whether members of an enumeration may come as texts."""


class Restored(NamedTuple):
    args: JsonObject
    read: tuple[str, ...]
    """JSON Pointers of the texts that were read as JSON."""


ReadJson = Callable[[bytes], JsonValue]
"""Reads a text of JSON. Raises ToolFailure for what is none."""


def restore(args: JsonObject, schema: JsonObject, reading: Reading, read_json: ReadJson) -> Restored:
    """Return the arguments in the words of the tool's own schema; `args` itself where nothing is to be turned back."""
    walk = _Walk(schema, reading, read_json)
    return Restored(walk.value(args, [schema], ""), tuple(walk.read))


class _Walk:
    def __init__(self, root: JsonObject, reading: Reading, read_json: ReadJson) -> None:
        self._root = root
        self._reading = reading
        self._read_json = read_json
        self.read: list[str] = []
        # By the identities of subschemas, which all stand in the document and live as long as it.
        self._known_places: dict[tuple[int, ...], list[JsonObject]] = {}
        self._known_kinds: dict[tuple[int, ...], frozenset[str]] = {}

    def value(self, value: Any, schemas: Sequence[JsonValue], path: str) -> Any:
        if isinstance(value, str) and (self._reading.reads_texts or self._reading.reads_members):
            value = self._text(value, schemas, path)
        if isinstance(value, dict):
            return self._object(value, self._places(schemas), path)
        if isinstance(value, list):
            return self._array(value, self._places(schemas), path)
        return value

    def _object(self, value: dict[str, Any], places: Sequence[JsonObject], path: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        is_same = True
        for name, child in value.items():
            own = self._own_name(name, value, places)
            schemas = [found for place in places if (found := _child(place, own)) is not None]
            if child is None and self._is_left_out(own, schemas, places):
                is_same = False
                continue
            result[own] = new = self.value(child, schemas, f"{path}/{own.replace('~', '~0').replace('/', '~1')}")
            is_same = is_same and new is child and own == name
        return value if is_same else result

    def _array(self, value: list[Any], places: Sequence[JsonObject], path: str) -> list[Any]:
        result: list[Any] = []
        for at, item in enumerate(value):
            schemas = [found for place in places if (found := _item(place, at)) is not None]
            result.append(self.value(item, schemas, f"{path}/{at}"))
        return result if any(new is not item for new, item in zip(result, value, strict=True)) else value

    def _own_name(self, name: str, value: Mapping[str, Any], places: Sequence[JsonObject]) -> str:
        own = self._reading.names.get(name)
        if own is None or own in value:
            return name
        declared = [mapping(place.get("properties")) for place in places]
        return own if any(own in each for each in declared) and not any(name in each for each in declared) else name

    def _is_left_out(self, name: str, schemas: Sequence[JsonValue], places: Sequence[JsonObject]) -> bool:
        if not (self._reading.drops_nulls or self._reading.drops_unfit_nulls) or not schemas:
            return False
        can_be_null = "null" in self._kinds(schemas)
        if self._reading.drops_unfit_nulls:
            return not can_be_null
        is_required = any(name in sequence(place.get("required")) for place in places)
        return not (can_be_null and is_required)

    def _text(self, text: str, schemas: Sequence[JsonValue], path: str) -> Any:
        """Return what a text stands for at its place; itself where that is a text."""
        if self._reading.reads_members:
            places = self._places(schemas)
            members = [each for place in places for each in sequence(place.get("enum"))]
            members += [place["const"] for place in places if "const" in place]
            found = [each for each in members if not isinstance(each, str) and text_of_member(each) == text]
            if found and text not in members:
                return found[0]
        kinds = self._kinds(schemas)
        if "string" in kinds:
            is_read = self._reading.reads_fitting_texts and text.lstrip()[:1] in ("{", "[")
        else:
            is_read = self._reading.reads_texts
        if not is_read:
            return text
        try:
            value = self._read_json(text.encode("utf-8", "surrogatepass"))
        except ToolFailure:
            return text  # the schema refuses it, where no text is allowed
        if isinstance(value, str) or not _kinds_of(value) & kinds:
            return text
        self.read.append(path)
        return value

    def _places(self, schemas: Sequence[JsonValue]) -> list[JsonObject]:
        """Return the subschemas with everything that may apply to the same value, references put in."""
        key = tuple(map(id, schemas))
        if key in self._known_places:
            return self._known_places[key]
        found = self._known_places[key] = []
        pending = [(schema, 0) for schema in schemas]
        while pending and len(found) < _PLACES_MAX:
            schema, depth = pending.pop(0)
            if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
                continue
            node = dereference(schema, self._root)
            found.append(node)
            pending += [(branch, depth + 1) for keyword in _IN_PLACE for branch in branches(node, keyword)]
        return found

    def _kinds(self, schemas: Sequence[JsonValue]) -> frozenset[str]:
        """Return the JSON types that one of the schemas may accept; all for none."""
        key = tuple(map(id, schemas))
        if key not in self._known_kinds:
            kinds = frozenset().union(*(self._kinds_of_schema(schema, 0) for schema in schemas)) if schemas else _ALL
            self._known_kinds[key] = kinds
        return self._known_kinds[key]

    def _kinds_of_schema(self, schema: JsonValue, depth: int) -> frozenset[str]:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return _ALL
        node = dereference(schema, self._root)
        kinds = declared_kinds(node)
        for branch in branches(node, "allOf"):
            kinds &= self._kinds_of_schema(branch, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if options := sequence(node.get(keyword)):
                kinds &= frozenset().union(*(self._kinds_of_schema(option, depth + 1) for option in options))
        return kinds


def declared_kinds(node: JsonObject) -> frozenset[str]:
    kinds = node.get("type")
    listed = [kinds] if isinstance(kinds, str) else [kind for kind in sequence(kinds) if isinstance(kind, str)]
    found = frozenset(listed) | ({"integer"} if "number" in listed else frozenset()) if listed else _ALL
    values = [node["const"]] if "const" in node else sequence(node.get("enum"))
    return found & frozenset().union(*map(_kinds_of, values)) if values else found


def _kinds_of(value: JsonValue) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"object"}) if isinstance(value, Mapping) else frozenset({"array"})


def _child(place: JsonObject, name: str) -> JsonValue | None:
    """Return the subschema of a property; None where the place says nothing about it."""
    properties = mapping(place.get("properties"))
    if name in properties:
        return properties[name]
    rest = place.get("additionalProperties")
    return rest if isinstance(rest, Mapping) else None


def _item(place: JsonObject, at: int) -> JsonValue | None:
    """Return the subschema of an item; None where the place says nothing about it."""
    items = place.get("items")
    prefix = sequence(place.get("prefixItems")) or (() if isinstance(items, Mapping) else sequence(items))
    if at < len(prefix):
        return prefix[at]
    rest = items if isinstance(items, Mapping) else place.get("additionalItems")
    return rest if isinstance(rest, Mapping) else None
