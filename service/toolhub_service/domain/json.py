"""JSON values as Python types (RFC 8259): the form of arguments, results and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    JsonValue: TypeAlias = "None | bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue]"
else:
    # A recursive alias cannot be resolved when msgspec reads the types of a Struct.
    JsonValue = bool | int | float | str | Sequence | Mapping | None
JsonObject: TypeAlias = Mapping[str, JsonValue]
"""Read-only by type: a step that changes arguments creates a new object."""
