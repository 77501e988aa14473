"""Runs a plan: its steps as inner calls, in rounds, so that a run of the same plan with the same answers makes the same
calls in the same order.

Each round makes all calls that wait for nothing more, at the same time: one for each step, or up to `parallel` items of
a `for_each`; it ends when all of them have answered. A durable run is replayed in this order.

A step is skipped when one that it needs was skipped or has failed, or its condition is false. When one fails with
`stop`, no round follows; with `compensate`, the steps that succeeded are also undone, last first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from toolhub_service.adapters.skill.plan.steps import Absent, CheckedPlan, PlanStep, fill_references, look_up
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import Progress, ToolResult
from toolhub_service.policy.conditions import ConditionFault

_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class PlanCall:
    """One call that was made."""

    step: str
    tool: str
    call_id: str
    ok: bool
    undoes: bool = False
    """Whether it undoes the step."""


@dataclass(slots=True)
class PlanRun:
    """What a run has done so far."""

    value: JsonValue = None
    calls: list[PlanCall] = field(default_factory=list)
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    truncated: bool = False


@dataclass(slots=True, eq=False)
class _Begun:
    """A started step: its items, and the answers of the calls made."""

    planned: PlanStep
    items: Sequence[JsonValue] | None
    """None: it is no `for_each`, and makes one call."""
    results: list[JsonValue] = field(default_factory=list)
    error: ToolError | None = None
    """Error of the first call that failed."""

    @property
    def count(self) -> int:
        return 1 if self.items is None else len(self.items)

    @property
    def is_over(self) -> bool:
        return len(self.results) == self.count or (self.error is not None and self.planned.on_failure != "continue")


@dataclass(frozen=True, slots=True)
class _Item:
    """One call of a step."""

    step: _Begun
    index: int
    scope: dict[str, JsonValue]


class PlanEngine:
    """One run of one plan. `calls` are narrowed to its tools, and durable; `report` is called with its progress."""

    def __init__(
        self,
        plan: CheckedPlan,
        args: JsonObject,
        calls: InnerCalls,
        *,
        purpose: str,
        parallel_calls: int,
        report: Callable[[Progress], None],
    ) -> None:
        self.run = PlanRun()
        self._plan = plan
        self._calls = calls
        self._purpose = purpose
        self._parallel_calls = parallel_calls
        self._report = report
        self._args = args
        self._over: dict[str, JsonObject] = {}
        self._begun: dict[str, _Begun] = {}
        self._done: list[_Item] = []
        """Calls that have succeeded, in the order in which they were made."""
        self._failed: list[_Begun] = []

    async def value(self) -> JsonValue:
        """Return the output. Raises ToolFailure of the failed step's kind, and as `InnerCalls.invoke`."""
        while True:
            self._begin()
            stops = [failed for failed in self._failed if failed.planned.on_failure != "continue"]
            if stops:
                raise await self._stop_run(stops)
            wave = [*self._next()]
            if not wave:
                break
            self._report_progress(wave)
            for item, result in zip(wave, await self._run_wave(wave), strict=True):
                self._take(item, result)
            self._settle()
        self.run.value = self._output()
        return self.run.value

    def _begin(self) -> None:
        """Skip or begin every step that waits for nothing more; a skipped one may free the next."""
        for planned in self._plan.steps:
            name = planned.step.id
            if name in self._begun or name in self._over or not planned.awaited <= self._over.keys():
                continue
            if any(self._over[needed]["ok"] is not True for needed in planned.required):
                self._over[name] = {"ok": False, "skipped": True}
                continue
            try:
                if planned.holds is not None and not planned.holds(self._scope()):
                    self._over[name] = {"ok": False, "skipped": True}
                    continue
                self._begun[name] = _Begun(planned, self._items(planned))
            except (ConditionFault, Absent, ToolFailure) as fault:
                self._fail(_Begun(planned, None, error=_unready(fault)))
            else:
                self._settle()  # without items

    def _items(self, planned: PlanStep) -> Sequence[JsonValue] | None:
        pointer, most = planned.step.for_each, planned.step.max_items
        if pointer is None:
            return None
        found = look_up(pointer, self._scope())
        if not isinstance(found, list):
            raise refuse(ErrorKind.EXECUTION_ERROR, f"{pointer} of `for_each` is no array.")
        if len(found) > most:
            raise refuse(ErrorKind.EXECUTION_ERROR, f"{pointer} has {len(found)} items; `max_items` is {most}.")
        return found

    def _next(self) -> Iterator[_Item]:
        left = self._parallel_calls
        for begun in self._begun.values():
            first = len(begun.results)
            for index in range(first, min(begun.count, first + begun.planned.step.parallel)):
                if not left:
                    return
                left -= 1
                scope = self._scope()
                if begun.items is not None:
                    scope |= {"item": begun.items[index], "index": index}
                yield _Item(begun, index, scope)

    async def _run_wave(self, wave: Sequence[_Item]) -> list[ToolResult | ToolError]:
        """Return their answers. When one is suspended or cancelled, the others end first."""
        made = await asyncio.gather(*map(self._run_step, wave), return_exceptions=True)
        answers: list[ToolResult | ToolError] = []
        for answer in made:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers

    async def _run_step(self, item: _Item) -> ToolResult | ToolError:
        step = item.step.planned.step
        try:
            args = fill_references(step.args, item.scope)
        except Absent as absent:
            return _unready(absent)
        assert isinstance(args, dict)
        return await self._calls.invoke(step.tool, args, purpose=f"{self._purpose}: {step.id}")

    def _take(self, item: _Item, answer: ToolResult | ToolError) -> None:
        begun, step = item.step, item.step.planned.step
        error: ToolError | None
        if isinstance(answer, ToolResult):
            self.run.calls.append(PlanCall(step.id, step.tool, answer.call_id, answer.ok))
            self.run.artifacts |= {ref.artifact_id: ref for ref in answer.artifacts}
            self.run.truncated |= answer.truncated
            begun.results.append(answer.value)
            error = answer.error
        else:
            begun.results.append(None)
            error = answer
        if error is None:
            self._done.append(item)
        elif begun.error is None:
            begun.error = error

    def _settle(self) -> None:
        """Note the steps that have ended."""
        for name, begun in [*self._begun.items()]:
            if not begun.is_over:
                continue
            del self._begun[name]
            if begun.error is not None:
                self._fail(begun)
            else:
                result = begun.results[0] if begun.items is None else begun.results
                self._over[name] = {"ok": True, "skipped": False, "result": result}

    def _fail(self, begun: _Begun) -> None:
        assert begun.error is not None
        self._failed.append(begun)
        failure: JsonObject = {"kind": begun.error.kind.value, "message": begun.error.message}
        partial: JsonObject = {} if begun.items is None else {"result": begun.results}
        self._over[begun.planned.step.id] = {"ok": False, "skipped": False, "error": failure, **partial}

    async def _stop_run(self, stops: Sequence[_Begun]) -> ToolFailure:
        """Undo what is declared, and return the failure of the run."""
        step, error = stops[0].planned.step, stops[0].error
        assert error is not None
        message = f"The step `{step.id}` ({step.tool}) failed: {excerpt(error.message, _SHOWN_CHARS)}"
        if any(stop.planned.on_failure == "compensate" for stop in stops):
            message = f"{message} {await self._undo_steps()}"
        elif self._done:
            message = f"{message} What earlier steps did is not undone: {', '.join(self._names_done())}."
        # A repeat of the run would repeat what was done, whether or not the step itself could be retried.
        retryable = None if not self._done else False
        return ToolFailure(
            structs.replace(error, message=message, retryable=retryable, violations=(), blames_upstream=False)
        )

    async def _undo_steps(self) -> str:
        undone, left = list[str](), list[str]()
        for item in reversed(self._done):
            step = item.step.planned.step
            if step.compensate is None:
                left.append(step.id)
                continue
            result = item.step.results[item.index]
            steps = {**self._over, step.id: {"ok": True, "skipped": False, "result": result}}
            try:
                args = fill_references(step.compensate.args, {**item.scope, "steps": steps})
                assert isinstance(args, dict)
            except Absent:
                left.append(step.id)
                continue
            purpose = f"{self._purpose}: undo {step.id}"
            answer = await self._calls.invoke(step.compensate.tool, args, purpose=purpose)
            self.run.calls.append(PlanCall(step.id, step.compensate.tool, answer.call_id, answer.ok, undoes=True))
            (undone if answer.ok else left).append(step.id)
        message = f"Undone: {', '.join(undone) or 'nothing'}."
        return f"{message} Not undone: {', '.join(dict.fromkeys(left))}." if left else message

    def _names_done(self) -> list[str]:
        return [*dict.fromkeys(item.step.planned.step.id for item in self._done)]

    def _output(self) -> JsonValue:
        try:
            return fill_references(self._plan.output, self._scope())
        except Absent as absent:
            message = (
                f"`output` of the plan refers to {absent}, which is not there. A `default` beside it would stand in."
            )
            raise refuse(ErrorKind.EXECUTION_ERROR, message) from None

    def _scope(self) -> dict[str, JsonValue]:
        return {"input": self._args, "steps": dict(self._over)}

    def _report_progress(self, wave: Sequence[_Item]) -> None:
        at = ", ".join(dict.fromkeys(f"{item.step.planned.step.id}: {item.step.planned.step.tool}" for item in wave))
        self._report(Progress(len(self._over), float(len(self._plan.steps)), unit="steps", message=at[:_SHOWN_CHARS]))


def _unready(fault: Exception) -> ToolError:
    """Return why a step could not be called."""
    if isinstance(fault, ToolFailure):
        return fault.error
    if isinstance(fault, Absent):
        message = f"It refers to {fault}, which is not there. A `default` beside it would stand in."
    else:
        message = f"Its condition cannot be answered: {fault}."
    return ToolError(ErrorKind.EXECUTION_ERROR, message)
