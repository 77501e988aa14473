"""What a defaults plan is made of, and how it is laid over arguments: copy on write, nothing else touched."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.schema.canonical_json import dumps

MAX_FILLED_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fill:
    """One property that is filled in when it is absent. An explicit null is not absent."""

    name: str
    step: str
    """`/name`, escaped as RFC 6901 wants it."""
    value: Any
    schema: int
    """Identity of the subschema that declared it."""
    size_bytes: int
    """What it adds to the canonical JSON of the arguments."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A tag property whose text decides which single branch of anyOf or oneOf applies."""

    tag: str
    branches: dict[str, PlanNode]


@dataclass(slots=True, eq=False)
class PlanNode:
    """What holds at one place of the arguments. Nodes form a graph that may be cyclic."""

    fills: tuple[Fill, ...] = ()
    children: tuple[tuple[str, str, PlanNode], ...] = ()
    """(name, step, node) of properties inside which something may be filled."""
    first_items: tuple[PlanNode | None, ...] = ()
    items: PlanNode | None = None
    picks: tuple[Pick, ...] = ()
    useful: bool = field(default=False)
    """Whether anything can be filled here or further in."""

    def successors(self) -> list[PlanNode]:
        inner = [node for _, _, node in self.children]
        inner += [node for node in (*self.first_items, self.items) if node is not None]
        return inner + [node for pick in self.picks for node in pick.branches.values()]

    def child(self, name: str) -> PlanNode | None:
        return next((node for known, _, node in self.children if known == name), None)


class Filling:
    """One walk over one value. `filled` collects JSON Pointers; those in `skip` are left out."""

    __slots__ = ("_left_bytes", "_skip", "filled")

    def __init__(self, skip: Container[str] = ()) -> None:
        self.filled: list[str] = []
        self._skip = skip
        self._left_bytes = MAX_FILLED_BYTES

    def over(self, node: PlanNode, value: Any, path: str) -> Any:
        """`value` with defaults, or `value` itself when nothing was absent. Depth is the caller's bound."""
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
        """A few bytes of arguments could ask for gigabytes of defaults: `[{}, {}, …]`."""
        self._left_bytes -= fill.size_bytes
        if self._left_bytes < 0:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"Completing the arguments with defaults would add more than {MAX_FILLED_BYTES:,} bytes. "
                "Send fewer items in one call.",
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
    """A JSON value that shares no array or object with `value`."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def fill_bytes(name: str, value: Any) -> int:
    return len(dumps({name: value}))
