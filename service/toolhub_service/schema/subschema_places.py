"""The schema objects that an error or a local pointer names; used for hints only, so what is unclear is just empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolhub_service.schema.json_pointer import names_of


def schema_at(root: Any, path: Iterable[str | int]) -> dict[str, Any]:
    found = root
    for token in path:
        try:
            found = found[token]
        except (KeyError, IndexError, TypeError):
            return {}
    return beside_references(root, found)


def beside_references(root: Any, found: Any) -> dict[str, Any]:
    """The schema behind a chain of local pointers, with what stands beside them."""
    merged: dict[str, Any] = {}
    for _ in range(8):
        if not isinstance(found, dict):
            break
        merged = {**found, **merged}
        reference = found.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found = _walk(root, names_of(reference[1:]))
    return merged


def _walk(root: Any, names: list[str]) -> Any:
    found = root
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found
