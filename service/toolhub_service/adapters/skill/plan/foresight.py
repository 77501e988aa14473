"""What a plan would do, as far as it can be known without running it: for dry runs and approvers.

Its steps are processed in order. A call that only reads is made; one that may change something is planned by a dry
run: its own effects, or the refusal that it would end with. Steps that need the answer of such a call are only named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.adapters.skill.plan.steps import Absent, CheckedPlan, PlanStep, fill_references, look_up
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import Plan
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.policy.conditions import ConditionFault

_ITEMS_MAX: Final = 20
_LINES_MAX: Final = 200
_LINE_CHARS: Final = 500


class PlanForesight:
    """One dry run. `specs`: the tools that may be called, by name."""

    def __init__(
        self, plan: CheckedPlan, args: JsonObject, calls: InnerCalls, specs: Mapping[str, ToolSpec], purpose: str
    ) -> None:
        self._plan = plan
        self._args = args
        self._calls = calls
        self._specs = specs
        self._purpose = purpose
        self._over: dict[str, JsonObject] = {}
        self._unknown: set[str] = set()
        """Steps whose answers cannot be known."""
        self._lines: list[str] = []

    async def lines(self) -> Sequence[str]:
        """Return one sentence per call. Raises as `InnerCalls.invoke`."""
        for planned in self._plan.steps:
            if not await self._foresee_step(planned):
                break
        return self._lines[:_LINES_MAX]

    async def _foresee_step(self, planned: PlanStep) -> bool:
        """Add what the step would do to the lines. Return False when it would fail, so that no later step would run."""
        step = planned.step
        if waits := sorted(planned.reads & self._unknown):
            self._unknown.add(step.id)
            self._add_line(planned, f"calls {step.tool}, depending on what {', '.join(waits)} answers.")
            return True
        if any(self._over[needed]["ok"] is not True for needed in planned.required - self._unknown):
            return self._skip(planned)
        try:
            if planned.holds is not None and not planned.holds(self._scope()):
                return self._skip(planned)
            items = self._items(planned)
        except (ConditionFault, Absent):
            self._add_line(planned, "would fail: what it refers to is not there.")
            return planned.on_failure == "continue" and self._skip(planned)
        return await self._foresee_calls(planned, items)

    async def _foresee_calls(self, planned: PlanStep, items: Sequence[JsonValue] | None) -> bool:
        results: list[JsonValue] = []
        for at, item in enumerate([None] if items is None else items[:_ITEMS_MAX]):
            scope = self._scope() if items is None else {**self._scope(), "item": item, "index": at}
            if not await self._call(planned, scope, results):
                return planned.on_failure == "continue" and self._skip(planned)
        if items is not None and len(items) > _ITEMS_MAX:
            self._add_line(planned, f"calls {planned.step.tool} for {len(items) - _ITEMS_MAX} items more.")
            self._unknown.add(planned.step.id)
        if planned.step.id not in self._unknown:
            result = results[0] if items is None else results
            self._over[planned.step.id] = {"ok": True, "skipped": False, "result": result}
        return True

    async def _call(self, planned: PlanStep, scope: Mapping[str, JsonValue], results: list[JsonValue]) -> bool:
        """Return whether the call would succeed."""
        step, spec = planned.step, self._specs.get(planned.step.tool)
        try:
            args = fill_references(step.args, scope)
        except Absent as absent:
            self._add_line(planned, f"would fail: {absent} is not there.")
            return False
        assert isinstance(args, dict)
        purpose = f"{self._purpose}: {step.id}"
        if spec is not None and spec.annotations.read_only:
            answer = await self._calls.invoke(step.tool, args, purpose=purpose)
            results.append(answer.value)
        else:
            plan = await self._calls.plan(step.tool, args, purpose=purpose)
            if isinstance(plan, Plan):
                self._unknown.add(step.id)
                waits = ", once a person has agreed" if any(each.error is not None for each in plan.steps) else ""
                self._add_line(planned, f"calls {step.tool}{waits}. {' '.join(plan.effects)}")
                return True
            answer = plan
        if answer.error is not None:
            self._add_line(planned, f"would fail: {answer.error.message}")
            return False
        self._add_line(planned, f"reads by {step.tool}.")
        return True

    def _items(self, planned: PlanStep) -> Sequence[JsonValue] | None:
        if planned.step.for_each is None:
            return None
        found = look_up(planned.step.for_each, self._scope())
        if not isinstance(found, list):
            raise Absent(planned.step.for_each)
        return found

    def _skip(self, planned: PlanStep) -> bool:
        self._over[planned.step.id] = {"ok": False, "skipped": True}
        return True

    def _scope(self) -> dict[str, JsonValue]:
        return {"input": self._args, "steps": dict(self._over)}

    def _add_line(self, planned: PlanStep, what: str) -> None:
        self._lines.append(f"Step {planned.step.id} {what}"[:_LINE_CHARS].rstrip())
