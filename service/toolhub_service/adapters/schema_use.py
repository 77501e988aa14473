"""Whether the hub can judge calls by a schema that came from elsewhere: bounded before anything walks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolhub_service.adapters.shortening import written
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject

SCHEMA_MAX_BYTES: Final = 256 * 1024

CheckSchema = Callable[[JsonObject], object]
"""Raises ToolFailure, HubFailure or ValueError for a schema that the hub cannot judge by."""


def unusable(schema: JsonObject, check_schema: CheckSchema) -> str:
    """Why it cannot be used, for a sentence; empty when it can."""
    text = written(schema)
    if text is None:
        return "it is nested too deeply."
    if len(text) > SCHEMA_MAX_BYTES:
        return f"it has more than {SCHEMA_MAX_BYTES} bytes."
    try:
        check_schema(schema)
    except ToolFailure as failure:
        return failure.error.message
    except HubFailure as failure:
        return failure.message
    except (ValueError, RecursionError) as refused:
        return str(refused) or "it is nested too deeply."
    return ""
