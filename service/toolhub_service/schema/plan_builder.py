"""Builds the graph of a defaults plan from a schema.

A place in the arguments is described by all subschemas that certainly apply there: `properties`, `items`, and what
`$ref` and `allOf` add, in the order written, so that the first definition of a default wins. anyOf and oneOf count
only where a tag (a property with a text `const` or `enum` in every branch) selects exactly one branch. `not`, `if`
and the dependent keywords never count. Places are memoised by their subschemas, which makes cyclic references end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from toolhub_service.schema.default_plan import Fill, Pick, PlanNode, fill_bytes
from toolhub_service.schema.references import Node, References, step_of

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
            for name, schema in members_of(part.get("properties")).items():
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
            for name, schema in members_of(part.get("properties")).items():
                accepted = [schema["const"]] if "const" in members_of(schema) else members_of(schema).get("enum")
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


def members_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
