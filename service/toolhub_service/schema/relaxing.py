"""A foreign schema without the parts that the hub cannot enforce: a tool must not be lost for one of them.

    a keyword that breaks the meta-schema of its draft       left out
    a reference that leads nowhere within the document       left out; nothing is fetched
    a pattern that is not linear, broken or too large        shown, but not enforced

A relaxed schema accepts whatever the original accepts. So where a part is left out below a keyword that inverts or
counts (`not`, `if`, `oneOf`, `maxContains`, `additionalProperties` beside lost properties), that keyword is widened,
too. Schemas beyond the bounds (size, depth, work) stay refused, as do those that an operator writes: only what a server
describes is relaxed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import jsonschema_rs

from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.compiled import BoundedCache, CompiledSchema, compile_schema, read_schema
from toolhub_service.schema.pattern_bound import unfit_patterns
from toolhub_service.schema.references import (
    CHILD_MAPS,
    CHILDREN,
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    Node,
    References,
    SchemaRefused,
    subschemas,
)
from toolhub_service.schema.rules import pointer, shorten

_REPAIRS_MAX: Final = 64
_SHOWN_CHARS: Final = 60
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS: Final = frozenset({*IN_PLACE_MAPS, *CHILD_MAPS, "$defs", "definitions"})
_LISTS: Final = frozenset({*IN_PLACE_LISTS, "prefixItems"})
_SINGLES: Final = frozenset({*IN_PLACE, *CHILDREN, "contentSchema"})
# Keywords that apply to what others leave over.
_REST_OF: Final = {
    "properties": "additionalProperties",
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
    "items": "additionalItems",
}


class Relaxed(NamedTuple):
    schema: JsonObject
    """The original itself when nothing is left out."""
    notes: tuple[str, ...] = ()
    """What is not enforced, a clause each; with excerpts of the schema."""


def repair_schema(schema: JsonObject) -> Relaxed:
    """Return the schema to show to models: without what cannot be read, and still with all its patterns.

    Raises SchemaRefused where what is left cannot be enforced either.
    """
    with suppress(SchemaRefused):
        compile_schema(schema)
        return Relaxed(schema)
    document = read_schema(schema)
    notes: dict[str, None] = {}
    loosened = _drop_malformed(document, notes)
    references = References(document)
    dangling = list(_dangling(references))
    loosened |= {id(node) for node, _ in dangling}
    _widen_around(references, loosened)
    for node, keyword in dangling:
        target = shorten(str(node.pop(keyword)), _SHOWN_CHARS)
        notes[f"the reference `{target}` leads nowhere within the schema and is left out"] = None
    enforced = _without_unfit_patterns(document)
    compile_schema(enforced.schema)
    return Relaxed(document if notes else schema, (*notes, *enforced.notes))


def compile_relaxed(schema: JsonObject) -> CompiledSchema:
    """Return the compiled form of a schema from `repair_schema`. Raises SchemaRefused."""
    text = dumps(schema)
    digest = hashlib.sha256(text).hexdigest()
    compiled = _cache.get(digest)
    if compiled is None:
        compiled = compile_schema(_without_unfit_patterns(schema).schema)
        _cache.put(digest, compiled, len(text))
    return compiled


_cache: BoundedCache[CompiledSchema] = BoundedCache(1_024, 8 * 1024 * 1024)


def _without_unfit_patterns(schema: JsonObject) -> Relaxed:
    document = read_schema(schema)
    references = References(document)
    unfit = unfit_patterns(references.nodes)
    if not unfit:
        return Relaxed(schema)
    loosened: set[int] = set()
    for node in references.nodes:
        if node.get("pattern") in unfit:
            del node["pattern"]
            loosened.add(id(node))
        named = node.get("patternProperties")
        if isinstance(named, dict) and not unfit.isdisjoint(named):
            node["patternProperties"] = {name: each for name, each in named.items() if name not in unfit}
            node.pop("additionalProperties", None)
            loosened.add(id(node))
    _widen_around(references, loosened)
    why = "is not enforced: it is not linear (look-around, back-references), broken or too large"
    return Relaxed(document, tuple(f"the pattern `{shorten(each, _SHOWN_CHARS)}` {why}" for each in sorted(unfit)))


def _drop_malformed(document: Node, notes: dict[str, None]) -> set[int]:
    """Remove what breaks the meta-schema; return the nodes that lost a part. Raises SchemaRefused."""
    loosened: set[int] = set()
    for _ in range(_REPAIRS_MAX):
        try:
            jsonschema_rs.meta.validate(document)
        except jsonschema_rs.ValidationError as error:
            path = list(error.instance_path)
            if not path:
                break
            _drop(document, path, loosened)
            where = shorten(pointer(path), _SHOWN_CHARS)
            notes[f"`{where}` breaks the meta-schema of its draft and is left out"] = None
        except (ValueError, jsonschema_rs.ReferencingError):
            if document.pop("$schema", None) is None:
                break
            notes["its `$schema` names no draft that the hub knows; it is read as draft 2020-12"] = None
        else:
            return loosened
    raise SchemaRefused("invalid", "It is no JSON Schema; validate it against its draft.")


def _drop(document: Node, path: list[str | int], loosened: set[int]) -> None:
    holder: Any = document
    place = "schema"
    for step in path[:-1]:
        if isinstance(holder, dict):
            loosened.add(id(holder))
        place = _place_below(place, step, holder[step])
        holder = holder[step]
    last = path[-1]
    loosened.add(id(holder))
    if place == "schemas":
        holder[last] = {}  # a subschema that is none accepts everything
        loosened.add(id(holder[last]))
        return
    dropped = holder.pop(last)
    if place == "schema":
        if last == "items" and isinstance(dropped, list) and dropped:
            # Before 2020-12 a list of schemas; servers often do not name that draft.
            holder["prefixItems"] = dropped
            holder.pop("additionalItems", None)
        else:
            holder.pop(_REST_OF.get(str(last), ""), None)


def _place_below(place: str, step: str | int, value: Any) -> str:
    """Return what a value within a schema is: a `schema`, a map or list of `schemas`, or `else`."""
    if place == "schemas":
        return "schema"
    if place == "schema":
        if step in _MAPS or step in _LISTS or (step in _SINGLES and isinstance(value, list)):
            return "schemas"
        if step in _SINGLES:
            return "schema"
    return "else"


def _dangling(references: References) -> Iterator[tuple[Node, str]]:
    # By index, because resolving may add nodes.
    at = 0
    while at < len(references.nodes):
        node = references.nodes[at]
        at += 1
        for keyword in _REFERENCES:
            if isinstance(target := node.get(keyword), str):
                try:
                    found = references.resolve(node, target)
                except SchemaRefused:
                    yield node, keyword
                    continue
                if not isinstance(found, dict | bool):
                    yield node, keyword


def _widen_around(references: References, loosened: set[int]) -> None:
    """Widen the keywords that would refuse more, because these nodes accept more than before."""
    if not loosened:
        return
    above: dict[int, list[Node]] = defaultdict(list)
    for node in references.nodes:
        for below in (*subschemas(node), *_targets(references, node)):
            above[id(below)].append(node)
    affected, pending = set(loosened), list(loosened)
    while pending:
        for node in above[pending.pop()]:
            if id(node) not in affected:
                affected.add(id(node))
                pending.append(id(node))
    for node in references.nodes:
        if id(node) in affected:
            _widen(node, affected)


def _targets(references: References, node: Node) -> Iterator[Node]:
    for keyword in _REFERENCES:
        if isinstance(target := node.get(keyword), str):
            with suppress(SchemaRefused):  # a dangling one leads to nothing that could be affected
                found = references.resolve(node, target)
                if isinstance(found, dict):
                    yield found
    if "$dynamicRef" in node or "$recursiveRef" in node:
        yield from (target for _, target in references.dynamic)


def _widen(node: Node, affected: set[int]) -> None:
    def is_affected(schema: object) -> bool:
        return isinstance(schema, dict) and id(schema) in affected

    if is_affected(node.get("not")):
        del node["not"]
    if is_affected(node.get("if")):
        for keyword in ("if", "then", "else"):
            node.pop(keyword, None)
    branches = node.get("oneOf")
    if isinstance(branches, list) and any(map(is_affected, branches)):
        del node["oneOf"]
        if "anyOf" in node:
            node["allOf"] = [*cast("list[Any]", node.get("allOf", [])), {"anyOf": branches}]
        else:
            node["anyOf"] = branches
    if is_affected(node.get("contains")):
        node.pop("maxContains", None)
    # What was left out may have been what evaluated them.
    node.pop("unevaluatedProperties", None)
    node.pop("unevaluatedItems", None)
