"""Calls for telemetry tests."""

from __future__ import annotations

from toolhub_service.domain.call import Call, ExecContext, GrantedCall, PlannedCall, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import SettledCall, StepName, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict

SPEC = ToolSpec("core/fs.readText", ToolKind.CORE, "Read a text file.", {"type": "object"}, {"type": "object"})
ALLOWED = Verdict(Effect.ALLOW, "rev-1", "grant:local", "granted")
DENIED = Verdict(Effect.DENY, "rev-1", "rule-7", "not now")
ALL_STEPS = tuple(StepName)


def asked(call_id: str = "call-1", tool: str = SPEC.name, **args: object) -> Call:
    return Call(call_id, tool, args, Principal("agent-a"), ExecContext(request_id="req-1"))  # type: ignore[arg-type]


def granted(call: Call) -> GrantedCall:
    return GrantedCall(PlannedCall(call, SPEC, call.args), ALLOWED, deadline_s=1.0)


def settled(
    call: Call,
    *,
    error: ErrorKind | None = None,
    steps: tuple[StepName, ...] = ALL_STEPS,
    verdict: Verdict | None = ALLOWED,
    spec: ToolSpec | None = SPEC,
    start_ns: int = 0,
) -> SettledCall:
    """A settled call whose steps took 1,000 µs, 2,000 µs, 3,000 µs …"""
    times, at = [], start_ns
    for number, step in enumerate(steps, start=1):
        times.append((step, at, at + number * 1_000_000))
        at += number * 1_000_000
    failure = None if error is None else ToolError(error, "Do it differently.")
    result = ToolResult(error is None, call.call_id, call.tool, error=failure, attempts=1)
    return SettledCall(call, spec, verdict, result, tuple(times), duration_ns=at - start_ns)
