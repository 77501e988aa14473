"""The schema objects that an error or a local pointer names; used for hints only, so what is unclear is just empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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
        tokens = [token.replace("~1", "/").replace("~0", "~") for token in reference[2:].split("/")]
        found = _walk(root, tokens)
    return merged


def _walk(root: Any, tokens: list[str]) -> Any:
    found = root
    for token in tokens:
        found = found.get(token) if isinstance(found, dict) else None
    return found
