"""Where a reference inside a schema leads, without leaving the document.

Every subschema below a known keyword is visited once, with its base URI, and its `$id` and anchors are noted. A
reference is then a look-up; a reference that is not found in the document is refused, whatever its scheme. Drafts
differ in two relevant points: up to draft 7 `$ref` hides its siblings, and an anchor is an `$id` that begins with `#`
(JSON Schema core, sections 8.2 and 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

# Limits for a schema, and the error of one that exceeds them.


class SchemaRefused(ValueError):
    """A schema is invalid, hostile or beyond the limits; its tool cannot be called.

    `reason` is one of `invalid`, `too_large`, `too_deep`, `too_complex`, `reference`, `endless`, `pattern`, `dialect`;
    `advice` is one sentence for the tool's author.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason = reason
        self.advice = advice


MAX_SCHEMA_BYTES: Final = 256 * 1024
"""Canonical JSON bytes."""
MAX_SCHEMA_DEPTH: Final = 64
"""Nested arrays and objects in the schema's own text."""
MAX_SUBSCHEMAS: Final = 20_000
MAX_REFERENCE_CHAIN: Final = 64
"""Applicators and references that may follow one another on the same value."""
MAX_INSTANCE_DEPTH: Final = 64
MAX_CHAIN_WORK: Final = 20_000
"""Subschema evaluations on the way from the root of an instance to any one of its leaves."""
MAX_TOTAL_WORK: Final = 5_000_000
"""Values in an instance times the chain work of the schema: about half a second of one core in the worst case."""
MIN_USEFUL_DEPTH: Final = 3
"""A schema that cannot be followed three levels down within MAX_CHAIN_WORK is refused instead of limited in depth."""


# Steps of a JSON Pointer (RFC 6901), in which `~` and `/` are written `~0` and `~1`.


def step_of(name: str) -> str:
    """Return a property's name as a step of a pointer, with the slash before it."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def names_of(pointer: str) -> list[str]:
    """Return the names in a pointer such as `/a/b~1c`, which begins with a slash."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


# The schema objects that an error or a local pointer names; for hints only, so an unclear one is just empty.


def schema_at(root: Any, path: Iterable[str | int]) -> dict[str, Any]:
    found = root
    for token in path:
        try:
            found = found[token]
        except (KeyError, IndexError, TypeError):
            return {}
    return beside_references(root, found)


def beside_references(root: Any, found: Any) -> dict[str, Any]:
    """Return the schema behind a chain of local pointers, with their sibling keywords."""
    merged: dict[str, Any] = {}
    for _ in range(8):
        if not isinstance(found, dict):
            break
        merged = {**found, **merged}
        reference = found.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found = _follow(root, names_of(reference[1:]))
    return merged


def _follow(root: Any, names: list[str]) -> Any:
    found = root
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


Node = dict[str, Any]

IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
IN_PLACE: Final = ("not", "if", "then", "else")
IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
CHILD_MAPS: Final = ("properties", "patternProperties")
CHILDREN: Final = (
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
)
_DEFINITIONS: Final = ("$defs", "definitions")
_MAPS: Final = (*IN_PLACE_MAPS, *CHILD_MAPS, *_DEFINITIONS)
_SINGLES: Final = (*IN_PLACE, *CHILDREN, *IN_PLACE_LISTS, "contentSchema")
_LEGACY: Final = ("draft-03", "draft-04", "draft-06", "draft-07")


class References:
    """The index of one schema document, whose containers must not be shared or changed afterwards."""

    def __init__(self, document: Node) -> None:
        self.document = document
        self.legacy = any(draft in str(document.get("$schema", "")) for draft in _LEGACY)
        self.dynamic: list[tuple[str, Node]] = []
        """Every `$dynamicAnchor` (and `$recursiveAnchor` under the empty name) with its subschema."""
        self.nodes: list[Node] = []
        """Every visited subschema; references to unusual places add to it."""
        self._resources: dict[str, Node] = {"": document}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._bases: dict[int, str] = {}
        self._visit(document, "")

    def resolve(self, node: Node, reference: str) -> Any:
        """Return the subschema that `reference` in `node` names.

        Raises:
            SchemaRefused: `reference` when it does not lead to a place in the document.
        """
        base = self._bases.get(id(node), "")
        url, fragment = _absolute(base, reference)
        found: Any = self._resources.get(url)
        fragment = unquote(fragment)
        if found is not None and fragment.startswith("/"):
            return self._follow(found, fragment, url, reference)
        if found is not None and fragment:
            found = self._anchors.get((url, fragment))
        if found is None:
            raise refuse_outside_reference(reference)
        return found

    @property
    def has_embedded_resources(self) -> bool:
        """Return whether subschemas have an `$id` of their own: places in errors are then relative to it."""
        return any(resource is not self.document for resource in self._resources.values())

    def is_embedded(self, node: Node) -> bool:
        """Return whether `node` belongs to an embedded resource, which pointers from the root may not reach."""
        return self._bases.get(id(node)) != self._bases[id(self.document)]

    def _follow(self, start: Node, pointer: str, base: str, reference: str) -> Any:
        found: Any = start
        for name in names_of(pointer):
            found = _step(found, name)
            if found is None:
                raise refuse_outside_reference(reference)
            if isinstance(found, dict):
                base = self._bases.get(id(found)) or base
        # A pointer may lead to a place that no keyword reaches (`#/x-shared/a`): the reference makes it a schema.
        if isinstance(found, dict) and id(found) not in self._bases:
            self._visit(found, base)
        return found

    def _visit(self, node: Node, base: str) -> None:
        pending = [(node, base)]
        while pending:
            node, base = pending.pop()
            if id(node) in self._bases:
                continue
            if len(self._bases) >= MAX_SUBSCHEMAS:
                raise SchemaRefused("too_complex", f"Use at most {MAX_SUBSCHEMAS:,} subschemas.")
            base = self._note(node, base)
            pending.extend((child, base) for child in subschemas(node))

    def _note(self, node: Node, base: str) -> str:
        """Store the node's id and anchors, and return the base URI inside it."""
        identifier = node.get("$id", node.get("id") if self.legacy else None)
        # Before 2019-09 a `$ref` hides all its siblings, `$id` included.
        if isinstance(identifier, str) and not (self.legacy and "$ref" in node):
            url, fragment = _absolute(base, identifier)
            if not identifier.startswith("#"):
                base = url
                self._resources.setdefault(url, node)
            if fragment:
                self._anchors[(base, fragment)] = node
        self._bases[id(node)] = base
        self.nodes.append(node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := node.get(keyword), str):
                self._anchors[(base, name)] = node
        if isinstance(name := node.get("$dynamicAnchor"), str):
            self.dynamic.append((name, node))
        if node.get("$recursiveAnchor") is True:
            self.dynamic.append(("", node))
        return base


def subschemas(node: Node) -> Iterator[Node]:
    """Yield the object subschemas directly below known keywords."""
    for keyword in _SINGLES:
        value = node.get(keyword)
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, dict))
    for keyword in _MAPS:
        value = node.get(keyword)
        if isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, dict))


def _absolute(base: str, reference: str) -> tuple[str, str]:
    """Return (URL without fragment, fragment). `urljoin` knows no URNs, so a bare fragment is joined by hand."""
    try:
        # urljoin drops a base whose scheme it does not know, such as `urn:`.
        url, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
    except ValueError:
        raise refuse_outside_reference(reference) from None
    return url, fragment


def _step(container: Any, token: str) -> Any:
    if isinstance(container, dict):
        return container.get(token)
    if isinstance(container, list) and token.isdecimal() and int(token) < len(container):
        return container[int(token)]
    return None


def refuse_outside_reference(reference: str) -> SchemaRefused:
    shown = reference if len(reference) <= 80 else reference[:79] + "…"
    return SchemaRefused("reference", f"{shown!r} points outside the document; copy its target to $defs.")
