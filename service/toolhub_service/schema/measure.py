"""How large and how deep a value is, found without recursion: native validators overflow the stack on deep values."""

from __future__ import annotations

from typing import Any, Final

from toolhub_service.domain.json import JsonValue

_CONTAINERS: Final = (dict, list, tuple)


def measure(root: JsonValue, max_depth: int) -> tuple[int, int]:
    """(values in it, depth). Stops at the first level beyond `max_depth`; `[]` and `{}` have depth 1, scalars 0."""
    values = 1
    depth = 0
    level: list[Any] = [root] if isinstance(root, _CONTAINERS) else []
    while level:
        depth += 1
        if depth > max_depth:
            break
        deeper: list[Any] = []
        for container in level:
            values += len(container)
            for item in container.values() if isinstance(container, dict) else container:
                if isinstance(item, _CONTAINERS):
                    deeper.append(item)  # noqa: PERF401 - a comprehension is a call for every container
        level = deeper
    return values, depth
