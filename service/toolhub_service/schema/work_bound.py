"""How much work a schema can cause, counted before it is run.

Validators evaluate every subschema that applies to a value once for each path of applicators that leads to it, so
thirty definitions that name each other twice cost 2^30 evaluations. Counted here, with each definition expanded
once (memoised over the reference graph):

- `here(s)`: evaluations of `s` and of all that applies to the same value (`$ref`, allOf, anyOf, not, if, …);
- `below(s)`: which subschemas apply to each child of that value, and how often;
- `chain(s, d) = here(s) + max over children of sum(times * chain(c, d - 1))`: all evaluations between a value and
  any one leaf at most `d` levels below.

A cycle among `here` edges makes no progress and is refused. A recursion that applies more than once to a child grows
with depth: instances of such a schema are limited to the depth within the bound, as instances are limited to 64 levels
anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

import msgspec

from toolhub_service.schema.references import (
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    MAX_CHAIN_WORK,
    MAX_INSTANCE_DEPTH,
    MAX_REFERENCE_CHAIN,
    MIN_USEFUL_DEPTH,
    Node,
    References,
    SchemaRefused,
)

_MAX_STEPS: Final = 100_000
_Child = tuple[str, str | int]
_REST_OF_OBJECT: Final[_Child] = ("object", "")
_REST_OF_ARRAY: Final[_Child] = ("array", "")
_COMPARED: Final = ("enum", "required", "properties", "patternProperties", "dependentRequired", "dependencies")
_NAMES: Final[_Child] = ("names", "")


class WorkBound(msgspec.Struct, frozen=True):
    """Limits for an instance that keep the schema cheap."""

    max_depth: int
    """Levels of arrays and objects, at most MAX_INSTANCE_DEPTH."""
    chain_work: int
    """Subschema evaluations between root and any leaf within that depth, at most MAX_CHAIN_WORK."""


def bound_work(references: References) -> WorkBound:
    """Return the limits for instances. Raises SchemaRefused `endless`, `too_complex` or `reference`."""
    count = _Count(references)
    root = id(references.document)
    count.expand(references.document, 0)
    count.expand_children()
    work = count.here
    for depth in range(1, MAX_INSTANCE_DEPTH + 1):
        deeper = count.one_level_deeper(work)
        if deeper[root] > MAX_CHAIN_WORK:
            return check_bound(depth - 1, work[root])
        if deeper == work:
            break
        work = deeper
    return WorkBound(MAX_INSTANCE_DEPTH, work[root])


def check_bound(max_depth: int, chain_work: int) -> WorkBound:
    if max_depth < MIN_USEFUL_DEPTH or chain_work > MAX_CHAIN_WORK:
        raise SchemaRefused(
            "too_complex", f"Nested alternatives multiply to more than {MAX_CHAIN_WORK:,} evaluations of one value."
        )
    return WorkBound(max_depth, chain_work)


class _Count:
    def __init__(self, references: References) -> None:
        self.here: dict[int, int] = {}
        self._below: dict[int, dict[_Child, Counter[int]]] = {}
        self._references = references
        self._open: set[int] = set()
        self._pending: list[Node] = []
        self._steps = 0

    def expand(self, node: Node, chain: int) -> None:
        """Compute `here` and `below` for `node` and everything that applies to the same value."""
        key = id(node)
        if chain > MAX_REFERENCE_CHAIN:
            raise SchemaRefused("too_complex", f"More than {MAX_REFERENCE_CHAIN} references follow one another.")
        self._open.add(key)
        here, below = _own_weight(node), self._children(node)
        for target, dynamic in self._applied_here(node):
            if id(target) in self._open:
                if dynamic:
                    continue
                raise SchemaRefused("endless", "A reference leads back to itself without entering a property or item.")
            if id(target) not in self.here:
                self.expand(target, chain + 1)
            here += self.here[id(target)]
            self._merge(below, self._below[id(target)])
        self._open.discard(key)
        self.here[key], self._below[key] = min(here, MAX_CHAIN_WORK + 1), below

    def expand_children(self) -> None:
        """Expand what applies to children, and to their children, until nothing is new."""
        while self._pending:
            node = self._pending.pop()
            if id(node) not in self.here:
                self.expand(node, 0)

    def one_level_deeper(self, work: dict[int, int]) -> dict[int, int]:
        return {key: min(self.here[key] + self._worst_child(key, work), MAX_CHAIN_WORK + 1) for key in self.here}

    def _worst_child(self, key: int, work: dict[int, int]) -> int:
        below = self._below[key]
        sums = {child: sum(times * work[target] for target, times in below[child].items()) for child in below}
        rest = {kind: total for (kind, name), total in sums.items() if name == ""}
        worst = max(rest.values(), default=0)
        for (kind, name), total in sums.items():
            if name != "":
                worst = max(worst, total + rest.get(kind, 0))
        return worst

    def _applied_here(self, node: Node) -> list[tuple[Node, bool]]:
        """Yield subschemas for the same value; the flag says that the target is only a possible one (dynamic scope)."""
        found: list[tuple[Any, bool]] = []
        if isinstance(reference := node.get("$ref"), str):
            found.append((self._references.resolve(node, reference), False))
            if self._references.legacy:
                return _objects(found)
        if isinstance(reference := node.get("$dynamicRef"), str):
            found.append((self._references.resolve(node, reference), True))
            name = reference.rpartition("#")[2]
            found += [(target, True) for anchor, target in self._references.dynamic if anchor == name]
        if isinstance(node.get("$recursiveRef"), str):
            found.append((self._references.resolve(node, "#"), True))
            found += [(target, True) for anchor, target in self._references.dynamic if anchor == ""]
        for keyword in IN_PLACE_LISTS:
            found += [(item, False) for item in list_or_empty(node.get(keyword))]
        found += [(node.get(keyword), False) for keyword in IN_PLACE]
        for keyword in IN_PLACE_MAPS:
            found += [(item, False) for item in dict_or_empty(node.get(keyword)).values()]
        return _objects(found)

    def _children(self, node: Node) -> dict[_Child, Counter[int]]:
        """Yield what `node` itself applies to each child. A declared property is not an additional one, so it is
        subtracted."""
        below: dict[_Child, Counter[int]] = defaultdict(Counter)
        if self._references.legacy and "$ref" in node:
            return below
        rest = [node.get("additionalProperties"), node.get("unevaluatedProperties")]
        for name, child in dict_or_empty(node.get("properties")).items():
            self._add(below, ("object", "." + name), child, 1)
            for other in rest:
                self._add(below, ("object", "." + name), other, -1)
        for child in (*rest, *dict_or_empty(node.get("patternProperties")).values()):
            self._add(below, _REST_OF_OBJECT, child, 1)
        self._add(below, _NAMES, node.get("propertyNames"), 1)
        self._add_items(below, node)
        return below

    def _add_items(self, below: dict[_Child, Counter[int]], node: Node) -> None:
        items = node.get("items")
        first = list_or_empty(node.get("prefixItems")) or list_or_empty(items)
        rest = [None if isinstance(items, list) else items, node.get("additionalItems"), node.get("unevaluatedItems")]
        for position, child in enumerate(first):
            self._add(below, ("array", position), child, 1)
            for other in rest:
                self._add(below, ("array", position), other, -1)
        for child in (*rest, node.get("contains")):
            self._add(below, _REST_OF_ARRAY, child, 1)

    def _add(self, below: dict[_Child, Counter[int]], child: _Child, target: Any, times: int) -> None:
        if isinstance(target, dict):
            if id(target) not in self.here:
                self._pending.append(target)
            below[child][id(target)] += times
            self._spend(1)

    def _merge(self, into: dict[_Child, Counter[int]], other: dict[_Child, Counter[int]]) -> None:
        for child, counts in other.items():
            self._spend(len(counts))
            for target, times in counts.items():
                into[child][target] += min(times, MAX_CHAIN_WORK)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise SchemaRefused("too_complex", "Its references combine too many subschemas; merge or flatten them.")


def _own_weight(node: Node) -> int:
    """Return one evaluation, plus one for every 16 names or values that may have to be compared."""
    compared = sum(len(sized_or_empty(node.get(keyword))) for keyword in _COMPARED)
    return 1 + compared // 16


def sized_or_empty(value: Any) -> list[Any] | dict[str, Any]:
    return value if isinstance(value, list | dict) else []


def list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(found: list[tuple[Any, bool]]) -> list[tuple[Node, bool]]:
    return [(target, dynamic) for target, dynamic in found if isinstance(target, dict)]
