"""Why a tool cannot be called: quarantined by its pin, or unavailable while the store of pins is."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from toolhub_service.domain.pin import Pin, PinChange, PinState
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import ToolSpec, ToolState

CANNOT_BE_KEPT: Final = (
    "its definition is too large or too deep, or has text or numbers that JSON cannot hold, so that nobody can "
    "approve it"
)
TOO_MANY_PINS: Final = (
    "its source has offered too many definitions that nobody decided on, so that this one was not kept: decide on "
    "those of `toolhub pins list`"
)
UNREADABLE: Final = "the record of what was approved cannot be read: run `toolhub doctor`"
STORE_UNAVAILABLE: Final = "what was approved cannot be looked up at the moment"
_WHY: Final = {
    PinChange.NONE: "nobody has approved its definition yet",
    PinChange.ADDED: "it was added by its source and nobody has approved it yet",
    PinChange.CHANGED: "its definition is another than the approved one",
    PinChange.REMOVED: "nobody has approved its definition yet",
    PinChange.RENAMED: "its source gave an approved tool this name",
    PinChange.SHADOWED: "it reads like a tool of another source",
}
_MOVED: Final = "it was registered when its source stood elsewhere, and nobody has approved it there"


def with_problem(definition: Definition) -> ToolSpec:
    """Return a callable tool, or a quarantined one when its definition cannot be used."""
    if not definition.problem:
        return definition.spec
    reason = (
        definition.problem
        if definition.is_operators
        else f"{definition.problem} No approval changes that; its source must."
    )
    return replace(definition.spec, state=ToolState.QUARANTINED, state_reason=reason)


def quarantine(definition: Definition, why: str) -> ToolSpec:
    """Return the tool in quarantine; the reason also says when its definition cannot be used."""
    reason = f"{definition.problem} Besides, {why}" if definition.problem else why
    return replace(definition.spec, state=ToolState.QUARANTINED, state_reason=reason)


def unavailable(spec: ToolSpec, why: str) -> ToolSpec:
    """Return the tool as it is while its source is unreachable; a tool that was not callable before stays as it was."""
    if spec.state is not ToolState.ACTIVE:
        return spec
    return replace(spec, state=ToolState.UNAVAILABLE, state_reason=why)


def reason_of(pin: Pin) -> str:
    """Return why a tool whose pin is not APPROVED is quarantined, with the command that shows it."""
    if pin.state is PinState.REJECTED:
        return f"its definition was rejected: `toolhub pins diff {pin.tool}`"
    if pin.state is PinState.APPROVED:
        command = f"toolhub pins accept {pin.tool} --digest {pin.digest[:12]}"
        return f"it was trusted on first use, and now its source asks for approval: `{command}`"
    advice = f"`toolhub pins diff {pin.tool}`, then `toolhub pins accept {pin.tool}` or reject it"
    former = f" (`{pin.renamed_from}` before)" if pin.renamed_from else ""
    why = _MOVED if pin.registered and pin.change is PinChange.NONE else _WHY[pin.change]
    return f"{why}{former}: {advice}"
