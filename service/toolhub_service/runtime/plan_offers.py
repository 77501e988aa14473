"""The refusal of a model's call that needs a plan: it shows the plan, and says how the same call commits it.

A program that is refused makes a dry run. A model has no such mode: it knows the tool and its arguments. So the hub
makes the dry run for it, an ordinary call of the same principal, and the model sends the plan's short digest in an
argument of its next call (`registry/export/plan_argument.py`). It may do no more than a program that makes the dry run
itself.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Plan, ToolResult
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.policy.table import PLAN_REMEDY

_EFFECTS_MAX: Final = 20
_EFFECT_MAX_CHARS: Final = 300


def lacks_plan(call: Call, answer: ToolResult) -> bool:
    """Return whether a call was refused for want of a plan that its caller could commit. Of an inner call the caller
    cannot (`inner_calls/refusals.py`), nor can a job that runs."""
    is_running_job = bool(call.job_id) and call.mode is Mode.EXECUTE
    if answer.error is None or is_running_job or call.lineage is not None:
        return False
    return answer.error.kind is ErrorKind.PLAN_REQUIRED


def to_dry_run(call: Call, call_id: str) -> Call:
    return call._replace(call_id=call_id, job_id="", mode=Mode.DRY_RUN, plan_digest="", approval_id="", client=None)


def attach_plan(answer: ToolResult, plan: Plan, *, digest: str, argument: str, now_unix_ms: int) -> ToolResult:
    """Return the refusal with the plan, or with the reason why the call cannot be made at all.

    `digest`: the plan's short one. `argument`: the one of the tool's calls that takes it.
    """
    assert answer.error is not None
    if not digest:
        stopped = next((step.error for step in reversed(plan.steps) if step.error is not None), answer.error)
        return answer._replace(error=stopped)
    effects = [excerpt(on_one_line(each), _EFFECT_MAX_CHARS) for each in plan.effects[:_EFFECTS_MAX]]
    if (more := len(plan.effects) - len(effects)) > 0:
        effects.append(f"And {more} more effects.")
    expires_in_s = max(0, plan.expires_at_unix_ms - now_unix_ms) // 1_000
    remedy = (
        f"To do exactly this, make the same call again within {expires_in_s} s with the same arguments and {argument}: "
        f'"{digest}". If it is not what the user wants, do not.'
    )
    would = f"The call would do this: {' '.join(effects)}" if effects else "The tool does not say what it would do."
    message = f"{_reason(plan.tool, answer.error)} Nothing has been done. {would} {remedy}"
    details: dict[str, JsonValue] = {
        **answer.error.details,
        "remedy": remedy,
        "effects": list(effects),
        "plan_digest": digest,
        "plan_argument": argument,
        "expires_in_s": expires_in_s,
    }
    return answer._replace(error=structs.replace(answer.error, message=message, details=details))


def _reason(tool: str, error: ToolError) -> str:
    """Return why the call was refused, without advice to programs."""
    differs = error.details.get("differs")
    if isinstance(differs, list):
        return f"{tool}: the plan that was sent does not fit this call ({', '.join(map(str, differs))})."
    return error.message.replace(PLAN_REMEDY, "").strip()
