"""Runs skills as their sidecars declare: as a script, a plan or a program. The hub determines how a run has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from toolhub_service.adapters.skill.evidence import of_plan, of_script, of_skill
from toolhub_service.adapters.skill.manifest import PYTHON, Manifest, ManifestInvalid
from toolhub_service.adapters.skill.plan.engine import PlanEngine
from toolhub_service.adapters.skill.plan.foresight import PlanForesight
from toolhub_service.adapters.skill.plan.steps import CheckedPlan
from toolhub_service.adapters.skill.program import ProgramParts, run_skill_program
from toolhub_service.adapters.skill.runnable import Runnable, runnable
from toolhub_service.adapters.skill.script import Script, ScriptParts
from toolhub_service.adapters.skill.skill import Skill
from toolhub_service.adapters.upstream import not_loaded
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import EventSink, InnerCalls
from toolhub_service.domain.result import Evidence, Outcome
from toolhub_service.sandbox.script_python import ScriptPython

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
        specs = {spec.name: spec for spec in await calls.offered_tools(lambda spec: made.may_call(spec.name))}
        narrowed = calls.restrict_to(specs, made.manifest.limits.calls)
        look = PlanForesight(plan, call.args, narrowed, specs, f"skill {made.skill.name}")
        return (*made.manifest.effects, *(await look.lines()))

    async def _script(self, call: GrantedCall, sink: EventSink, made: Runnable) -> Outcome:
        calls = await self._narrow_calls(call, made) if made.makes_calls else None
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
            (await self._narrow_calls(call, made)).durable(),
            purpose=f"skill {made.skill.name}",
            parallel_calls=made.manifest.limits.parallel_calls,
            report=sink.progress,
        )
        value = await engine.value()
        run = engine.run
        evidence: tuple[Evidence, ...] = (of_skill(made), *of_plan(run.calls))
        return Outcome(value, evidence, tuple(run.artifacts.values()), truncated=run.truncated)

    async def _program(self, call: GrantedCall, sink: EventSink, made: Runnable) -> Outcome:
        ended = await run_skill_program(self._programs, call, sink, made, await self._narrow_calls(call, made))
        return Outcome(ended.value, (of_skill(made), *ended.evidence), tuple(ended.artifacts))

    async def _narrow_calls(self, call: GrantedCall, made: Runnable) -> InnerCalls:
        """Return those of the caller's permitted calls that the skill may make. Raises ToolFailure BUDGET_EXCEEDED
        where calls are nested too deeply."""
        calls = self._calls(call)
        offered = await calls.offered_tools(lambda spec: made.may_call(spec.name))
        return calls.restrict_to([spec.name for spec in offered], made.manifest.limits.calls)
