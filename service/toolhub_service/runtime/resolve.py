"""Step 1: which tool, which version, is it callable?"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Catalog, PolicySource
from toolhub_service.domain.tool import ToolSpec, ToolState

_SUGGESTIONS_MAX = 3
_COMPARED_MAX = 100
"""Names that a wrong one is compared with; comparing it with 5,000 would hold up every other call for 160 ms."""

_CLOSE_MAX = 10
_WORD = re.compile(r"[A-Za-z][a-z]{2,15}")
"""A word of a name, in camelCase or between other signs."""


Unread = Callable[[str], str]
"""Why a tool of that full name may yet appear, for its source has not been read in this process; empty: it will not."""


def all_read(_tool: str) -> str:
    return ""


def resolve(call: Call, catalog: Catalog, policy: PolicySource, unread: Unread = all_read) -> ToolSpec:
    """The tool's definition. Raises TOOL_NOT_FOUND (with near names), TOOL_QUARANTINED or TOOL_UNAVAILABLE."""
    spec = catalog.get(call.tool)
    if spec is None:
        reason = unread(call.tool)
        raise _not_there_yet(call, reason) if reason else _not_found(call, catalog, policy)
    if spec.state is ToolState.ACTIVE:
        return spec
    if spec.state is ToolState.QUARANTINED:
        why = spec.state_reason.rstrip(".") or "it is not approved"
        raise refuse(
            ErrorKind.TOOL_QUARANTINED,
            f"{spec.name} waits for an operator: {why}. Use another tool.",
            reason=spec.state_reason,
        )
    raise refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{spec.name} cannot be used now: {spec.state_reason or spec.state.value.lower()}.",
        retryable=spec.state is ToolState.UNAVAILABLE,
        reason=spec.state_reason,
        state=spec.state.value,
    )


def _not_there_yet(call: Call, reason: str) -> ToolFailure:
    """Right after a start nobody knows which tools a source has; a job that waits for one must not fail of that."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{call.tool} cannot be used now, for its source cannot: {reason.rstrip('.')}.",
        reason=reason,
        state=ToolState.UNAVAILABLE.value,
    )


def _not_found(call: Call, catalog: Catalog, policy: PolicySource) -> ToolFailure:
    """Suggests only what the caller may know of: a denied tool must not be found by guessing names."""
    specs = catalog.all()
    close = get_close_matches(call.tool, _neighbours(call.tool, specs), n=_CLOSE_MAX, cutoff=0.6)
    close += [name for name in _of_the_same_words(call.tool, specs) if name not in close]
    visible = [name for name in close if _may_see(name, call, catalog, policy)][:_SUGGESTIONS_MAX]
    advice = f"Did you mean {', '.join(visible)}?" if visible else "SearchTools finds a tool by what it does."
    return refuse(ErrorKind.TOOL_NOT_FOUND, f"There is no tool named {call.tool!r}. {advice}", did_you_mean=visible)


def _neighbours(name: str, specs: Sequence[ToolSpec]) -> list[str]:
    """The names that stand next to it in the alphabet; all of a small catalog."""
    place = bisect_left(specs, name, key=lambda spec: spec.name)
    start = max(0, min(place - _COMPARED_MAX // 2, len(specs) - _COMPARED_MAX))
    return [spec.name for spec in specs[start : start + _COMPARED_MAX]]


def _of_the_same_words(name: str, specs: Sequence[ToolSpec]) -> list[str]:
    """Names that hold most words of this one, as models guess them: `read_file` for `core/fs.readText`."""
    words = {word.casefold() for word in _WORD.findall(name.rpartition("/")[2])}
    held = [(sum(word in spec.name.casefold() for word in words), spec.name) for spec in specs] if words else []
    most = max((count for count, _ in held), default=0)
    return [found for count, found in held if count == most][:_CLOSE_MAX] if most else []


def _may_see(name: str, call: Call, catalog: Catalog, policy: PolicySource) -> bool:
    spec = catalog.get(name)
    if spec is None or spec.state is ToolState.QUARANTINED:
        return False
    return policy.could_allow(call.principal.id, spec)
