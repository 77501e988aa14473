"""The parts of a defaults plan, and how it is applied to arguments: copy on write, nothing else changed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.references import Node, References, step_of

MAX_FILLED_BYTES: Final = 1024 * 1024


class Fill(msgspec.Struct, frozen=True):
    """One property that is filled in when it is absent. An explicit null is not absent."""

    name: str
    step: str
    """`/name`, escaped as RFC 6901 requires."""
    value: Any
    schema: int
    """Identity of the subschema that declared the default."""
    size_bytes: int
    """Bytes that it adds to the canonical JSON of the arguments."""


class Pick(msgspec.Struct, frozen=True):
    """A tag property whose text decides which single branch of anyOf or oneOf applies."""

    tag: str
    branches: dict[str, PlanNode]


@dataclass(slots=True, eq=False)
class PlanNode:
    """The defaults for one place of the arguments. Nodes form a graph that may be cyclic."""

    fills: tuple[Fill, ...] = ()
    children: tuple[tuple[str, str, PlanNode], ...] = ()
    """(name, pointer step, node) of properties inside which something may be filled."""
    first_items: tuple[PlanNode | None, ...] = ()
    items: PlanNode | None = None
    picks: tuple[Pick, ...] = ()
    useful: bool = field(default=False)
    """Return whether anything can be filled here or below."""

    def successors(self) -> list[PlanNode]:
        inner = [node for _, _, node in self.children]
        inner += [node for node in (*self.first_items, self.items) if node is not None]
        return inner + [node for pick in self.picks for node in pick.branches.values()]

    def child(self, name: str) -> PlanNode | None:
        return next((node for known, _, node in self.children if known == name), None)


class Filling:
    """One traversal of one value. `filled` collects JSON Pointers; those in `skip` are left out."""

    __slots__ = ("_left_bytes", "_skip", "filled")

    def __init__(self, skip: Container[str] = ()) -> None:
        self.filled: list[str] = []
        self._skip = skip
        self._left_bytes = MAX_FILLED_BYTES

    def over(self, node: PlanNode, value: Any, path: str) -> Any:
        """Return `value` with defaults, or `value` itself when nothing was absent. The caller bounds the depth."""
        if isinstance(value, dict):
            return self._over_object(node, value, path)
        if isinstance(value, list):
            return self._over_array(node, value, path)
        return value

    def _over_object(self, node: PlanNode, value: dict[str, Any], path: str) -> dict[str, Any]:
        result = value
        for fill in node.fills:
            if fill.name not in value and path + fill.step not in self._skip:
                if result is value:
                    result = dict(value)
                result[fill.name] = self._taken(fill)
                self.filled.append(path + fill.step)
        for name, step, child in node.children:
            present = value.get(name)
            if isinstance(present, dict | list):
                changed = self.over(child, present, path + step)
                if changed is not present:
                    if result is value:
                        result = dict(value)
                    result[name] = changed
        for pick in node.picks:
            branch = pick.branches.get(tag) if isinstance(tag := value.get(pick.tag), str) else None
            if branch is not None:
                result = self._over_object(branch, result, path)
        return result

    def _taken(self, fill: Fill) -> Any:
        """Return a copy of the default, its bytes counted: a few bytes of arguments could request gigabytes of
        defaults: `[{}, {}, …]`."""
        self._left_bytes -= fill.size_bytes
        if self._left_bytes < 0:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"The default values would add more than {MAX_FILLED_BYTES:,} bytes. Send fewer items in one call.",
            )
        return copied(fill.value)

    def _over_array(self, node: PlanNode, value: list[Any], path: str) -> list[Any]:
        if node.items is None and not node.first_items:
            return value
        result = value
        for position, item in enumerate(value):
            inner = node.first_items[position] if position < len(node.first_items) else node.items
            if inner is None or not isinstance(item, dict | list):
                continue
            changed = self.over(inner, item, f"{path}/{position}")
            if changed is not item:
                if result is value:
                    result = list(value)
                result[position] = changed
        return result


def copied(value: Any) -> Any:
    """Return a JSON value that shares no array or object with `value`."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def fill_bytes(name: str, value: Any) -> int:
    return len(dumps({name: value}))


# From a schema to the graph of a defaults plan.
#
# A place in the arguments is described by all subschemas that certainly apply there: `properties`, `items`, and what
# `$ref` and `allOf` add, in the order written, so that the first definition of a default wins. anyOf and oneOf count
# only where a tag (a property with a text `const` or `enum` in every branch) selects exactly one branch. `not`, `if`
# and the dependent keywords never count. Places are memoised by their subschemas, which makes cyclic references end.

_MAX_NODES: Final = 4000
_MISSING: Final = object()
_Place = tuple[int, ...]


class PlanBuilder:
    """Builds the graph with every declared default; `nodes` contains all of them."""

    def __init__(self, references: References) -> None:
        self.nodes: dict[_Place, PlanNode] = {}
        self._references = references
        self._pending: list[tuple[PlanNode, list[Node]]] = []

    def build(self) -> PlanNode:
        root = self._place([self._references.document])
        while self._pending:
            node, schemas = self._pending.pop()
            self._describe(node, schemas)
        return root or PlanNode()

    def _place(self, schemas: list[Any]) -> PlanNode | None:
        """Return the node where all of `schemas` apply; None when none is an object or the plan has grown too large."""
        objects = [schema for schema in schemas if isinstance(schema, dict)]
        key = tuple(dict.fromkeys(id(schema) for schema in objects))
        if key not in self.nodes:
            if not key or len(self.nodes) >= _MAX_NODES:
                return None
            self.nodes[key] = PlanNode()
            self._pending.append((self.nodes[key], objects))
        return self.nodes[key]

    def _describe(self, node: PlanNode, schemas: list[Node]) -> None:
        flat = [part for schema in schemas for part in self._applying(schema)]
        properties: dict[str, list[Any]] = {}
        for part in flat:
            for name, schema in _mapped(part.get("properties")).items():
                properties.setdefault(name, []).append(schema)
        node.fills = tuple(fill for name, found in properties.items() if (fill := self._fill(name, found)) is not None)
        placed = ((name, self._place(found)) for name, found in properties.items())
        node.children = tuple((name, step_of(name), child) for name, child in placed if child is not None)
        node.items = self._place([part.get("items") for part in flat])
        node.first_items = self._first_items(flat)
        node.picks = tuple(pick for part in flat for pick in self._picks(part))

    def _fill(self, name: str, schemas: list[Any]) -> Fill | None:
        for schema in schemas:
            for part in self._applying(schema) if isinstance(schema, dict) else ():
                default = part.get("default", _MISSING)
                if default is not _MISSING and not self._references.is_embedded(part):
                    return Fill(name, step_of(name), default, id(part), fill_bytes(name, default))
        return None

    def _first_items(self, flat: list[Node]) -> tuple[PlanNode | None, ...]:
        tuples = [part.get("prefixItems") or part.get("items") for part in flat]
        first = next((items for items in tuples if isinstance(items, list)), [])
        return tuple(self._place([item]) for item in first)

    def _applying(self, schema: Node) -> Iterator[Node]:
        """Yield the schema itself and, in order, what `$ref` and `allOf` apply to the same value; each once."""
        seen: set[int] = set()
        pending: list[Any] = [schema]
        while pending:
            part = pending.pop(0)
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            inner = [self._references.resolve(part, part["$ref"])] if isinstance(part.get("$ref"), str) else []
            pending[:0] = inner + (part["allOf"] if isinstance(part.get("allOf"), list) else [])

    def _picks(self, part: Node) -> Iterator[Pick]:
        for keyword in ("oneOf", "anyOf"):
            branches = part.get(keyword)
            if isinstance(branches, list) and len(branches) > 1 and all(isinstance(item, dict) for item in branches):
                pick = self._pick(branches)
                if pick is not None:
                    yield pick

    def _pick(self, branches: list[Node]) -> Pick | None:
        tags = [self._tags(branch) for branch in branches]
        for tag in tags[0]:
            if all(tag in known for known in tags):
                texts = [text for known in tags for text in known[tag]]
                nodes = {
                    text: node
                    for branch, known in zip(branches, tags, strict=True)
                    for text in known[tag]
                    if texts.count(text) == 1 and (node := self._place([branch])) is not None
                }
                return Pick(tag, nodes) if nodes else None
        return None

    def _tags(self, branch: Node) -> dict[str, list[str]]:
        """Return the properties of a branch that accept only certain texts."""
        tags: dict[str, list[str]] = {}
        for part in self._applying(branch):
            for name, schema in _mapped(part.get("properties")).items():
                accepted = [schema["const"]] if "const" in _mapped(schema) else _mapped(schema).get("enum")
                if isinstance(accepted, list) and accepted and all(isinstance(text, str) for text in accepted):
                    tags.setdefault(name, list(dict.fromkeys(accepted)))
        return tags


def prune(nodes: list[PlanNode]) -> None:
    """Keep only edges that lead to something to fill; `useful` returns whether a node is on such a path."""
    _mark_useful(nodes)
    for node in nodes:
        _prune(node)


def _mark_useful(nodes: list[PlanNode]) -> None:
    """Mark, backwards from the nodes that fill something, all nodes from which one of them can be reached."""
    predecessors: dict[int, list[PlanNode]] = {}
    for node in nodes:
        for successor in node.successors():
            predecessors.setdefault(id(successor), []).append(node)
    pending = [node for node in nodes if node.fills]
    while pending:
        node = pending.pop()
        if not node.useful:
            node.useful = True
            pending += predecessors.get(id(node), [])


def _prune(node: PlanNode) -> None:
    node.children = tuple(child for child in node.children if child[2].useful)
    node.items = node.items if node.items is not None and node.items.useful else None
    first = tuple(item if item is not None and item.useful else None for item in node.first_items)
    node.first_items = first if any(first) or node.items else ()
    kept = (Pick(pick.tag, {text: to for text, to in pick.branches.items() if to.useful}) for pick in node.picks)
    node.picks = tuple(pick for pick in kept if pick.branches)


def _mapped(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
