"""The parts of a defaults plan, and how it is applied to arguments: copy on write, nothing else changed."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.schema.canonical_json import dumps

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
                result[fill.name] = self._take_copy(fill)
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

    def _take_copy(self, fill: Fill) -> Any:
        """Return a copy of the default, its bytes counted: a few bytes of arguments could request gigabytes of
        defaults: `[{}, {}, …]`."""
        self._left_bytes -= fill.size_bytes
        if self._left_bytes < 0:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"The default values would add more than {MAX_FILLED_BYTES:,} bytes. Send fewer items in one call.",
            )
        return copy_json(fill.value)

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


def copy_json(value: Any) -> Any:
    """Return a JSON value that shares no array or object with `value`."""
    if isinstance(value, dict):
        return {name: copy_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def fill_bytes(name: str, value: Any) -> int:
    return len(dumps({name: value}))
