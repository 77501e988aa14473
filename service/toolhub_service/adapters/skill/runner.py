"""Runs skills as their sidecars declare: as a script, a plan or a program. The hub determines how a run has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from toolhub_service.adapters.skill.call_door import MadeCall
from toolhub_service.adapters.skill.manifest import PYTHON, Manifest, ManifestInvalid
from toolhub_service.adapters.skill.plan.engine import PlanCall, PlanEngine
from toolhub_service.adapters.skill.plan.steps import Absent, CheckedPlan, PlanStep, filled, look_up
from toolhub_service.adapters.skill.program import ProgramParts, run_skill_program
from toolhub_service.adapters.skill.runnable import Runnable, runnable
from toolhub_service.adapters.skill.script import Script, ScriptParts, ScriptRun
from toolhub_service.adapters.skill.skill import Skill
from toolhub_service.adapters.upstream import not_loaded
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink, InnerCalls
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, Plan
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.policy.conditions import ConditionFault
from toolhub_service.sandbox.script_python import ScriptPython
from toolhub_service.schema.repaired_json import repair_evidence

_KNOWN_MAX: Final = 256
_NOT_STARTED: Final = (126, 127)
"""Exit codes of prlimit(1) and shells where a program cannot be executed, or is not found; a script may end so, too."""
_NO_SCRIPTS: Final = "scripts of skills cannot start on the hub's machine; operators see why by `toolhub doctor`"


class SkillRuns:
    """Implements `SkillRunner`. `calls` returns the calls that a running call may make."""

    def __init__(
        self,
        parts: ScriptParts,
        programs: ProgramParts,
        calls: Callable[[GrantedCall], InnerCalls],
        python: ScriptPython,
    ) -> None:
        self._parts = parts
        self._programs = programs
        self._calls = calls
        self._python = python
        self._lacking = ""
        self._known: dict[str, Runnable] = {}

    async def examine(self) -> str:
        self._lacking = await self._python.problem()
        return self._lacking

    def unavailable(self, manifest: Manifest) -> str:
        if manifest.mode == "program":
            return self._programs.interpreter.unavailable_reason()
        return _NO_SCRIPTS if manifest.mode == "script" and self._lacking else ""

    async def run(self, call: GrantedCall, sink: EventSink, skill: Skill, manifest: Manifest) -> Outcome:
        made = self._runnable(call, skill)
        if manifest.mode == "script":
            return await self._script(call, sink, made)
        if manifest.mode == "program":
            return await self._program(call, sink, made)
        return await self._plan(call, sink, made)

    async def foresee(self, call: GrantedCall, skill: Skill, manifest: Manifest) -> Sequence[str]:
        made = self._runnable(call, skill)
        return self.effects(call, skill, manifest) if made.plan is None else await self._foreseen(call, made, made.plan)

    def effects(self, call: GrantedCall, skill: Skill, manifest: Manifest) -> Sequence[str]:
        made = self._runnable(call, skill)
        if made.plan is not None:
            steps = (f"Step {each.step.id} calls {each.step.tool}." for each in made.plan.steps)
            return (*manifest.effects, *steps)
        tools = (f"May call {', '.join(made.wanted)}, each under the caller's own rights.",) if made.wanted else ()
        if manifest.mode == "program":
            return (*manifest.effects, f"Runs the program of the skill {skill.name}.", *tools)
        files = [each.name for each in manifest.required_artifacts]
        leaves = (f"Leaves {', '.join(files)} as artifacts.",) if files else ()
        return (*manifest.effects, f"Runs the script of the skill {skill.name} in a sandbox.", *leaves, *tools)

    def _runnable(self, call: GrantedCall, skill: Skill) -> Runnable:
        """Raises ToolFailure for an unusable sidecar, for which no tool is offered."""
        made = self._known.get(f"{skill.digest} {skill.folder}")
        if made is None:
            try:
                made = runnable(skill)
            except ManifestInvalid:
                made = None
            if made is None:
                raise not_loaded(call.spec.name)
            self._known = dict([*self._known.items()][-_KNOWN_MAX:])
            self._known[f"{skill.digest} {skill.folder}"] = made
        return made

    async def _foreseen(self, call: GrantedCall, made: Runnable, plan: CheckedPlan) -> Sequence[str]:
        calls = self._calls(call)
        specs = {spec.name: spec for spec in await calls.offered(lambda spec: made.may_call(spec.name))}
        narrowed = calls.narrowed(specs, made.manifest.limits.calls)
        look = PlanForesight(plan, call.args, narrowed, specs, f"skill {made.skill.name}")
        return (*made.manifest.effects, *(await look.lines()))

    async def _script(self, call: GrantedCall, sink: EventSink, made: Runnable) -> Outcome:
        calls = await self._narrowed(call, made) if made.makes_calls else None
        script = Script(self._parts, made, call, sink, await self._python.find(), calls)
        try:
            run = await script.run()
        except ToolFailure as failure:
            await self._check_python(made, failure)
            raise
        evidence = (of_skill(made), *of_script(made, run))
        return Outcome(value=run.value, evidence=evidence, artifacts=run.artifacts)

    async def _check_python(self, made: Runnable, failure: ToolFailure) -> None:
        """Raise ToolFailure TOOL_UNAVAILABLE when not the script has failed, but the start of its interpreter."""
        entry, upstream = made.manifest.entry, failure.error.upstream
        if upstream is None or upstream.status not in _NOT_STARTED or entry is None or entry.argv[0] != PYTHON:
            return
        if await self._python.problem(again=True):
            message = f"The skill {made.skill.name} was not started: {_NO_SCRIPTS}. Use another tool."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False) from failure

    async def _plan(self, call: GrantedCall, sink: EventSink, made: Runnable) -> Outcome:
        assert made.plan is not None
        engine = PlanEngine(
            made.plan,
            call.args,
            (await self._narrowed(call, made)).durable(),
            purpose=f"skill {made.skill.name}",
            parallel_calls=made.manifest.limits.parallel_calls,
            report=sink.progress,
        )
        value = await engine.value()
        run = engine.run
        evidence: tuple[Evidence, ...] = (of_skill(made), *of_plan(run.calls))
        return Outcome(value, evidence, tuple(run.artifacts.values()), truncated=run.truncated)

    async def _program(self, call: GrantedCall, sink: EventSink, made: Runnable) -> Outcome:
        ended = await run_skill_program(self._programs, call, sink, made, await self._narrowed(call, made))
        return Outcome(ended.value, (of_skill(made), *ended.evidence), tuple(ended.artifacts))

    async def _narrowed(self, call: GrantedCall, made: Runnable) -> InnerCalls:
        """Return those of the caller's permitted calls that the skill may make. Raises ToolFailure BUDGET_EXCEEDED
        where calls are nested too deeply."""
        calls = self._calls(call)
        offered = await calls.offered(lambda spec: made.may_call(spec.name))
        return calls.narrowed([spec.name for spec in offered], made.manifest.limits.calls)


# Evidence of a skill's run: what the hub observed and counted, never what the skill reports about itself.

_CALLS_SHOWN_MAX: Final = 100
_STEPS_MAX: Final = 200
_WORDS_MAX_CHARS: Final = 500


def of_skill(made: Runnable) -> Evidence:
    """Return the skill's version and the digest of its whole tree, which was verified before it ran."""
    name, manifest = made.skill.name, made.manifest
    return Evidence(
        EvidenceType.FILE,
        f"skill:{name}",
        f"The skill {name} {manifest.version}, mode {manifest.mode}, {len(made.skill.files)} files.",
        sha256=made.skill.digest,
        attributes={"version": manifest.version, "mode": manifest.mode},
    )


def of_script(made: Runnable, run: ScriptRun) -> Iterator[Evidence]:
    finished = run.finished
    yield Evidence(
        EvidenceType.TOOL,
        f"script:{made.skill.name}",
        f"It ran for {finished.duration_s:.2f} s and ended with exit code {finished.exit_code}.",
        sha256=finished.stdout.sha256,
        attributes={
            "argv": " ".join(run.argv)[:_WORDS_MAX_CHARS],
            "interpreter": run.interpreter,
            "exit_code": str(finished.exit_code),
            "duration_ms": str(round(finished.duration_s * 1_000)),
            "stdout_bytes": str(finished.stdout.total_bytes),
            "stderr_bytes": str(finished.stderr.total_bytes),
            "stderr_sha256": finished.stderr.sha256,
            "cpu_ms": str(round(finished.cpu_s * 1_000)),
            "memory_max_bytes": str(finished.memory_max_bytes),
            **run.confinement,
        },
    )
    yield from repair_evidence(f"script:{made.skill.name}", run.repairs)
    yield from map(_of_artifact, run.artifacts)
    if made.makes_calls:
        yield _of_calls(made, run.calls)


def of_plan(calls: Sequence[PlanCall]) -> Iterator[Evidence]:
    """Yield one item per step."""
    steps: dict[tuple[str, str, bool], list[PlanCall]] = {}
    for call in calls:
        steps.setdefault((call.step, call.tool, call.undoes), []).append(call)
    for (step, tool, undoes), made in [*steps.items()][:_STEPS_MAX]:
        failed = sum(not call.ok for call in made)
        what = "undone by" if undoes else "called"
        yield Evidence(
            EvidenceType.TOOL,
            f"step:{step}",
            f"{what} {tool}: {len(made)} calls, {failed} failed.",
            attributes=_ids([call.call_id for call in made]),
        )


def _of_calls(made: Runnable, calls: Sequence[MadeCall]) -> Evidence:
    failed = sum(not call.ok for call in calls)
    return Evidence(
        EvidenceType.TOOL,
        f"calls:{made.skill.name}",
        f"It made {len(calls)} calls of tools, of which {failed} failed.",
        attributes=_ids([call.call_id for call in calls]),
    )


def _of_artifact(ref: ArtifactRef) -> Evidence:
    return Evidence(
        EvidenceType.FILE,
        f"artifact:{ref.artifact_id}",
        f"It left {ref.name or 'a file'} of {ref.size_bytes} bytes.",
        sha256=ref.sha256,
        attributes={"media_type": ref.media_type},
    )


def _ids(ids: Sequence[str]) -> Mapping[str, str]:
    return {"calls": str(len(ids)), "call_ids": " ".join(ids[:_CALLS_SHOWN_MAX])}


# What a plan would do, as far as it can be known without running it: for dry runs and approvers.
#
# Its steps are processed in order. A call that only reads is made; one that may change something is planned by a dry
# run: its own effects, or the refusal that it would end with. Steps that need the answer of such a call are only named.

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
            args = filled(step.args, scope)
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
