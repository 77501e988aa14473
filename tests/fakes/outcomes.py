"""What a call came to, when both a result and a refusal are right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from toolhub_service.domain.errors.failure import ToolFailure


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or the error of a refusal."""
    try:
        return call(*arguments)
    except ToolFailure as failure:
        return failure.error


async def outcome_of(call: Awaitable[Any]) -> Any:
    """The same for an async call."""
    try:
        return await call
    except ToolFailure as failure:
        return failure.error
