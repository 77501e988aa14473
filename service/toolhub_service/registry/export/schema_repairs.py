"""Input schemas as model interfaces accept them, still JSON Schema: changed only where a request would be refused.

One tool that an interface refuses costs the whole request, so each rule is applied at every depth. docs/model-forms.md
names the interface behind each rule and its source. The hub validates calls against the original schema; nothing is
required here that the original does not require.

    the root is no object, or has a combinator beside it    one object with the properties of all branches
    an array without `items`                                 `items: {}`
    `items: [..]` of draft 7 and before                      `prefixItems` and `items`
    `exclusiveMinimum: true` of draft 4                      the number
    a property's name that the interface refuses             another one, which `model_arguments` turns back
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from toolhub_service.domain.json import JsonObject, JsonValue

_UNIONS: Final = ("anyOf", "oneOf")
# Limits for references and nested branches that are followed.
MAX_DEPTH: Final = 8
_REFUSED: Final = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not"})
# Keywords below which subschemas stand: by name, and alone or in a list.
_BY_PROPERTY: Final = ("properties", "dependentSchemas", "dependencies", "dependentRequired")
_SCALAR_KINDS: Final = ("string", "integer", "number", "boolean", "null")
_MAPS: Final = frozenset("properties patternProperties dependentSchemas dependencies $defs definitions".split())
_SINGLES: Final = frozenset(
    "items prefixItems additionalItems unevaluatedItems contains additionalProperties unevaluatedProperties "
    "propertyNames not if then else allOf anyOf oneOf contentSchema".split()
)

# The root


def object_schema(schema: JsonObject) -> JsonObject:
    """Return the schema with an object at its root and no combinator beside it; the same object when it already is
    one."""
    if schema.get("type") == "object" and "properties" in schema and _REFUSED.isdisjoint(schema):
        return schema
    kept = {key: value for key, value in dereference(schema, schema).items() if key not in _REFUSED}
    properties, required = merge_branches(schema, schema)
    flat: dict[str, JsonValue] = {**kept, "type": "object", "properties": properties}
    if required:
        flat["required"] = sorted(required)
    return flat


def dereference(schema: JsonObject, root: JsonObject) -> JsonObject:
    """Return the schema with a reference within the document replaced by its target; siblings of the reference win."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            break
        target: JsonValue = root
        for step in reference.split("/")[1:]:
            target = _entry(target, unquote(step).replace("~1", "/").replace("~0", "~"))
        schema = {**mapping(target), **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _entry(container: JsonValue, step: str) -> JsonValue:
    if isinstance(container, Mapping):
        return container.get(step)
    items = sequence(container)
    return items[int(step)] if step.isdecimal() and int(step) < len(items) else None


def merge_branches(schema: JsonObject, root: JsonObject, depth: int = 0) -> tuple[dict[str, JsonValue], set[str]]:
    """Return all properties of a schema and its branches, and those that are required whichever branch applies."""
    schema = dereference(schema, root)
    properties = dict(mapping(schema.get("properties")))
    required = {name for name in sequence(schema.get("required")) if isinstance(name, str)}
    if depth > MAX_DEPTH:
        return properties, required
    for branch in branches(schema, "allOf"):
        more, needed = merge_branches(branch, root, depth + 1)
        _add(properties, more)
        required |= needed
    for keyword in _UNIONS:
        unions = [merge_branches(branch, root, depth + 1) for branch in branches(schema, keyword)]
        for more, _ in unions:
            _add(properties, more)
        if unions:
            required |= set.intersection(*(needed for _, needed in unions))
    return properties, required


def _add(properties: dict[str, JsonValue], more: Mapping[str, JsonValue]) -> None:
    """Two definitions of one property are both shown: either may be the one that applies."""
    for name, definition in more.items():
        known = properties.setdefault(name, definition)
        if known != definition:
            options = list(sequence(mapping(known).get("anyOf"))) or [known]
            properties[name] = {"anyOf": options if definition in options else [*options, definition]}


def branches(schema: JsonObject, keyword: str) -> list[JsonObject]:
    return [branch for branch in sequence(schema.get(keyword)) if isinstance(branch, Mapping)]


def mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


# Below the root


def rewrite(schema: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """Return the schema with every object subschema changed, the innermost first; the same object if none is."""
    changed: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword in _MAPS and isinstance(value, Mapping):
            new = {name: _rewritten(child, change) for name, child in value.items()}
            if any(new[name] is not child for name, child in value.items()):
                changed[keyword] = new
        elif keyword in _SINGLES and isinstance(value, Mapping):
            found = rewrite(value, change)
            if found is not value:
                changed[keyword] = found
        elif keyword in _SINGLES and isinstance(value, list | tuple):
            listed = [_rewritten(item, change) for item in value]
            if any(old is not item for old, item in zip(listed, value, strict=True)):
                changed[keyword] = listed
    return change({**schema, **changed} if changed else schema)


def _rewritten(value: JsonValue, change: Callable[[JsonObject], JsonObject]) -> JsonValue:
    return rewrite(value, change) if isinstance(value, Mapping) else value


def repair(schema: JsonObject) -> JsonObject:
    """Return the schema in the words of JSON Schema 2020-12, with `items` for every array; the same object when it
    already is."""
    repaired = rewrite(schema, _repair_node)
    if repaired is not schema and "$schema" in repaired:  # it named the draft that was left
        repaired = {key: value for key, value in repaired.items() if key != "$schema"}
    return repaired


_SUSPECT: Final = frozenset({"items", "prefixItems", "exclusiveMinimum", "exclusiveMaximum", "required"})


def _repair_node(node: JsonObject) -> JsonObject:
    if node.get("type") in _SCALAR_KINDS and _SUSPECT.isdisjoint(node):
        return node
    changed: dict[str, JsonValue] = {}
    drop: set[str] = set()
    _repair_array(node, changed, drop)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(exclusive), bool):
            is_exclusive = node[exclusive] is True and bound in node
            drop.add(bound if is_exclusive else exclusive)
            if is_exclusive:
                changed[exclusive] = node[bound]
    if isinstance(node.get("required"), bool):  # of draft 3
        drop.add("required")
    if not changed and not drop:
        return node
    return {**{key: value for key, value in node.items() if key not in drop}, **changed}


def _repair_array(node: JsonObject, changed: dict[str, JsonValue], drop: set[str]) -> None:
    items = node.get("items")
    if isinstance(items, Sequence) and not isinstance(items, str):
        rest = node.get("additionalItems")
        changed |= {"prefixItems": items, "items": rest if isinstance(rest, Mapping) else {}}
        drop.add("additionalItems")
        if rest is False:
            changed["maxItems"] = node.get("maxItems", len(items))
    elif not isinstance(items, Mapping) and _may_be_array(node):
        changed["items"] = {}
        if items is False:
            changed["maxItems"] = node.get("maxItems", len(sequence(node.get("prefixItems"))))


def _may_be_array(node: JsonObject) -> bool:
    kinds = node.get("type")
    return kinds == "array" or "array" in sequence(kinds) or "prefixItems" in node


# Names of properties

_SUFFIX_DIGITS: Final = 8
_NAME_MAX_CHARS: Final = 64


class NameRule(NamedTuple):
    """Which names of properties an interface accepts."""

    accepted: re.Pattern[str]
    foreign: re.Pattern[str]
    """What becomes `_`."""
    prefix: str = ""
    """What goes before a name that begins wrongly."""


DOTTED_NAMES: Final = NameRule(re.compile(r"[A-Za-z0-9_.-]{1,64}"), re.compile(r"[^A-Za-z0-9_.-]"))
PLAIN_NAMES: Final = NameRule(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"), re.compile(r"[^A-Za-z0-9_]"), "_")


def accepted_names(schema: JsonObject, rule: NameRule) -> dict[str, str]:
    """Return the accepted name of each property, anywhere in the schema, whose own name is refused.

    A name of the schema has one accepted name wherever it occurs, which is no other property's. The outcome depends on
    the set of names only.
    """
    names = set(property_names(schema))
    refused = sorted(name for name in names if not rule.accepted.fullmatch(name))
    taken = names - set(refused)
    accepted: dict[str, str] = {}
    for name in refused:
        short = rule.foreign.sub("_", name)
        if not rule.accepted.match(short):
            short = rule.prefix + short
        if short in taken or not rule.accepted.fullmatch(short):
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_SUFFIX_DIGITS]
            short = f"{short[: _NAME_MAX_CHARS - _SUFFIX_DIGITS - 1]}_{digest}"
        accepted[name] = short
        taken.add(short)
    return accepted


def property_names(schema: JsonObject) -> Iterator[str]:
    """Yield the name of every property at any depth."""
    pending: list[JsonValue] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        for keyword, value in node.items():
            if keyword in _MAPS and isinstance(value, Mapping):
                if keyword == "properties":
                    yield from value
                pending.extend(value.values())
            elif keyword in _SINGLES and isinstance(value, Mapping):
                pending.append(value)
            elif keyword in _SINGLES and isinstance(value, list | tuple):
                pending.extend(value)


def rename(schema: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """Return the schema with these properties under other names; the same object without any."""
    return rewrite(schema, lambda node: _rename_node(node, names)) if names else schema


def _rename_node(node: JsonObject, names: Mapping[str, str]) -> JsonObject:
    changed: dict[str, JsonValue] = {}
    for keyword in _BY_PROPERTY:
        value = node.get(keyword)
        if isinstance(value, Mapping) and not value.keys().isdisjoint(names):
            changed[keyword] = {names.get(name, name): child for name, child in value.items()}
    required = sequence(node.get("required"))
    if any(name in names for name in required if isinstance(name, str)):
        changed["required"] = [names.get(name, name) if isinstance(name, str) else name for name in required]
    reference = node.get("$ref")
    if isinstance(reference, str) and "/properties/" in reference:
        changed["$ref"] = _renamed_reference(reference, names)
    return {**node, **changed} if changed else node


def _renamed_reference(reference: str, names: Mapping[str, str]) -> str:
    steps = reference.split("/")
    for at, step in enumerate(steps[1:], 1):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if steps[at - 1] == "properties" and name in names:
            steps[at] = names[name]
    return "/".join(steps)


# Descriptions


def cut_description(text: str, max_chars: int, advice: str) -> str:
    """Return a text of at most so many characters: the whole sentences that fit, and `advice` where any is missing."""
    if len(text) <= max_chars:
        return text
    room = text[: max_chars - len(advice) - 1]
    ends = [end.end() for end in _SENTENCE_END.finditer(room)]
    kept = room[: ends[-1]].rstrip() if ends else room[: room.rfind(" ")] if " " in room else room
    return f"{kept} {advice}"


_SENTENCE_END: Final = re.compile(r"[.!?](?=\s)|[。！？]|(?=\n)")
