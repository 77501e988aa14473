"""An excerpt of a large value, which can be validated like the whole, with every place that was cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import measure
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH

Path = tuple[str | int, ...]

_MAX_ITEMS: Final = 32
_MAX_MEMBERS: Final = 256


@dataclass(slots=True)
class Excerpt:
    value: JsonValue
    cuts: set[Path] = field(default_factory=set)
    """Paths of the arrays and objects that are incomplete, and of all that contain them."""

    def is_cut_at(self, path: Path) -> bool:
        """Return whether the value at `path` is incomplete."""
        return path in self.cuts


def cut(value: JsonValue, max_values: int) -> Excerpt:
    """Return `value` itself when it has at most `max_values` values, otherwise about that many of it, every level
    cut."""
    excerpt = Excerpt(value)
    if measure(value, MAX_INSTANCE_DEPTH)[0] > max_values:
        excerpt.value = _Cutter(max_values, excerpt.cuts).part(value, ())
    return excerpt


class _Cutter:
    def __init__(self, max_values: int, cuts: set[Path]) -> None:
        self._left = max_values
        self._cuts = cuts

    def part(self, value: Any, path: Path) -> Any:
        self._left -= 1
        if isinstance(value, dict):
            names = list(value)[: max(0, min(self._left, _MAX_MEMBERS))]
            kept: Any = {name: self.part(value[name], (*path, name)) for name in names}
        elif isinstance(value, list | tuple):
            items = value[: max(0, min(self._left, _MAX_ITEMS))]
            kept = [self.part(item, (*path, position)) for position, item in enumerate(items)]
        else:
            return value
        if len(kept) < len(value):
            self._cuts.update(path[:length] for length in range(len(path) + 1))
        return kept
