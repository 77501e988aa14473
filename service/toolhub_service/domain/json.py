"""JSON values as Python types (RFC 8259): what arguments, results and schemas are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonValue: TypeAlias = "None | bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue]"
JsonObject: TypeAlias = Mapping[str, JsonValue]
"""Read-only by type: a step that changes arguments makes a new object."""
