"""Plans: what a dry run shows, and the commit of exactly that call by its digest (`plan_digest.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.call import Mode, PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Plan, StepName, StepVerdict
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.call_state import CallState
from toolhub_service.runtime.plan_digest import check, commit_verdict, is_stale, seal, shorten, stale

# The last part only when the tool itself says that it would fail.
_SHOWN = (
    StepName.RESOLVE,
    StepName.VALIDATE_INPUT,
    StepName.APPLY_DEFAULTS,
    StepName.CHECK_POLICY,
    StepName.TAKE_BUDGET,
    StepName.EXECUTE,
)


class Plans:
    """Seals and checks plan digests with the hub's key: any replica that has the key can commit a plan."""

    def __init__(self, key: bytes, clock: Clock, ttl_s: float) -> None:
        self._key = key
        self._clock = clock
        self._ttl_s = ttl_s

    def commit(self, planned: PlannedCall, verdict: Verdict) -> Verdict:
        """Return the verdict of a call that commits its plan. Raises PLAN_REQUIRED when the plan is not the one that
        was shown; `is_stale` checks its state."""
        call = planned.call
        # A job's plan was valid when it was submitted; the caller cannot help how long it waits then.
        now_unix_ms = 0 if call.job_id and call.mode is Mode.EXECUTE else self._clock.unix_ms()
        check(call.plan_digest, planned, verdict, now_unix_ms, self._key)
        return commit_verdict(verdict)

    def is_stale(self, planned: PlannedCall, verdict: Verdict) -> bool:
        """Return whether what the call would destroy differs from what its plan showed."""
        return is_stale(planned.call.plan_digest, planned, verdict, self._key)

    def stale(self, planned: PlannedCall, verdict: Verdict, effects: Sequence[str]) -> ToolFailure:
        """Return the refusal of a stale plan, with the current plan; `verdict` is the policy's own."""
        sealed = seal(planned, verdict, self._expires_at_unix_ms(), self._key)
        return stale(sealed, effects, self._ttl_s)

    def shorten(self, plan_digest: str) -> str:
        """Return a digest of the same plan that a model can copy."""
        return shorten(plan_digest, self._key)

    def _expires_at_unix_ms(self) -> int:
        return self._clock.unix_ms() + int(self._ttl_s * 1_000)

    def show(self, state: CallState, effects: Sequence[str], error: ToolError | None) -> Plan:
        """Return the plan of a dry run; `error` is why it stopped, None when the call could be committed."""
        planned, verdict, spec = state.planned, state.verdict, state.spec
        digest, expires_at_unix_ms = "", 0
        if planned is not None and verdict is not None and _could_be_committed(error):
            expires_at_unix_ms = self._expires_at_unix_ms()
            digest = seal(planned, verdict, expires_at_unix_ms, self._key)
        return Plan(
            call_id=state.call.call_id,
            tool=state.call.tool,
            tool_version=spec.version if spec else "",
            tool_digest=spec.digest if spec else "",
            args=planned.args if planned else state.call.args,
            defaults_applied=planned.defaults_applied if planned else (),
            steps=tuple(_step_verdicts(state, error)),
            effects=tuple(effects),
            plan_digest=digest,
            expires_at_unix_ms=expires_at_unix_ms,
            request_id=state.call.context.request_id,
        )


def _could_be_committed(error: ToolError | None) -> bool:
    """Return whether the plan can be committed: an approval may still come, but every other refusal is final."""
    return error is None or error.kind is ErrorKind.APPROVAL_REQUIRED


def _step_verdicts(state: CallState, error: ToolError | None) -> list[StepVerdict]:
    """Return one verdict for each step that was run; the last one failed when `error` is given."""
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
