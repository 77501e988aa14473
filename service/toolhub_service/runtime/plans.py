"""Plans: what a dry run shows, and the digest by which exactly that is committed."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.call import Mode, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Plan, StepName, StepVerdict
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.policy import plan_digest
from toolhub_service.runtime.call_state import CallState

_SHOWN = (
    StepName.RESOLVE,
    StepName.VALIDATE_INPUT,
    StepName.APPLY_DEFAULTS,
    StepName.CHECK_POLICY,
    StepName.TAKE_BUDGET,
    StepName.EXECUTE,
)
"""The last only when the tool itself says that it would fail."""


class Plans:
    """Seals and checks plan digests with the hub's key: any replica that has the key can commit a plan."""

    def __init__(self, key: bytes, clock: Clock, ttl_s: float) -> None:
        self._key = key
        self._clock = clock
        self._ttl_s = ttl_s

    def commit(self, planned: PlannedCall, verdict: Verdict) -> Verdict:
        """The verdict of a call that commits its plan. Raises PLAN_REQUIRED when it is not the one that was shown;
        whether its state is, `is_stale` tells."""
        call = planned.call
        # A job's plan was in time when it was submitted; how long it then waits is not the caller's doing.
        now_unix_ms = 0 if call.job_id and call.mode is Mode.EXECUTE else self._clock.unix_ms()
        plan_digest.check(call.plan_digest, planned, verdict, now_unix_ms, self._key)
        return plan_digest.committed(verdict)

    def is_stale(self, planned: PlannedCall, verdict: Verdict) -> bool:
        """Whether what the call would destroy is no longer what its plan showed."""
        return plan_digest.is_stale(planned.call.plan_digest, planned, verdict, self._key)

    def stale(self, planned: PlannedCall, verdict: Verdict, effects: Sequence[str]) -> ToolFailure:
        """The refusal of a stale plan, with the plan of now. `verdict`: the policy's own."""
        sealed = plan_digest.seal(planned, verdict, self._expires_at_unix_ms(), self._key)
        return plan_digest.stale(sealed, effects, self._ttl_s)

    def _expires_at_unix_ms(self) -> int:
        return self._clock.unix_ms() + int(self._ttl_s * 1_000)

    def show(self, state: CallState, effects: Sequence[str], error: ToolError | None) -> Plan:
        """The plan of a dry run; `error` is why it stopped, None when the call could be committed."""
        planned, verdict, spec = state.planned, state.verdict, state.spec
        expires_at_unix_ms = self._expires_at_unix_ms()
        sealable = planned is not None and verdict is not None and _could_be_committed(error)
        return Plan(
            call_id=state.call.call_id,
            tool=state.call.tool,
            tool_version=spec.version if spec else "",
            tool_digest=spec.digest if spec else "",
            args=planned.args if planned else state.call.args,
            defaults_applied=planned.defaults_applied if planned else (),
            steps=tuple(_step_verdicts(state, error)),
            effects=tuple(effects),
            plan_digest=plan_digest.seal(planned, verdict, expires_at_unix_ms, self._key)
            if sealable and planned and verdict
            else "",
            expires_at_unix_ms=expires_at_unix_ms,
        )


def _could_be_committed(error: ToolError | None) -> bool:
    """An approval may still come; every other refusal leaves nothing to commit."""
    return error is None or error.kind is ErrorKind.APPROVAL_REQUIRED


def _step_verdicts(state: CallState, error: ToolError | None) -> list[StepVerdict]:
    """One verdict a step that was walked, the last one failed when `error` is given."""
    reached = _SHOWN[: _SHOWN.index(state.step) + 1]
    if error is None and reached[-1] is StepName.EXECUTE:
        reached = reached[:-1]
    return [_step_verdict(step, state, error if step is reached[-1] else None) for step in reached]


def _step_verdict(step: StepName, state: CallState, error: ToolError | None) -> StepVerdict:
    verdict = state.verdict
    if step is StepName.CHECK_POLICY and verdict is not None:
        reason = verdict.reason
        if verdict.effect is Effect.REQUIRE_PLAN:
            reason = f"{reason} Commit this plan by its digest."
        return StepVerdict(step, error is None, verdict.rule_id, reason, verdict.remedy, error)
    return StepVerdict(step, error is None, reason=error.message if error else "", error=error)


# Step 4: may this agent do this, now, with these arguments? Asks the policy in force and honours plans.
