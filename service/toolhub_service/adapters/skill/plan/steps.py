"""The steps of a plan, checked when the skill is loaded: what each waits for, what it refers to, when it is skipped.

A reference is an object `{"$from": POINTER}`, with a `default`, itself possibly a reference, for a target that may be
missing:

    /input/…                 the skill's arguments
    /steps/ID/result/…       an earlier step's result: for a `for_each` an array with an entry for each item
    /steps/ID/ok             whether it succeeded
    /steps/ID/skipped        whether it was left out
    /steps/ID/error/kind     why it failed, and `message`
    /item/…  /index          within `for_each`: the item, and its place from 0

A step may only refer to earlier steps, so no plan has a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import UNSET

from toolhub_service.adapters.skill.manifest import Manifest, PointerTest, Step
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.policy.conditions import Expression
from toolhub_service.schema.references import names_of

REFERENCE: Final = "$from"
DEFAULT: Final = "default"
_REFERENCE_KEYS: Final = frozenset({REFERENCE, DEFAULT})
_PARTS: Final = ("result", "ok", "skipped", "error")
_VARIABLES: Final = ("input", "steps")
_DEPTH_MAX: Final = 32

Scope = Mapping[str, JsonValue]
"""`input`, `steps`, and within `for_each` `item` and `index`."""


class Absent(LookupError):
    """The target of a reference is missing; the message names the pointer."""


@dataclass(frozen=True, slots=True)
class Reference:
    pointer: str
    has_default: bool
    place: str
    """Its place, such as `plan.steps[2].args.path`."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step with the steps that it depends on."""

    step: Step
    required: frozenset[str]
    """Steps that must succeed; otherwise it is skipped."""
    awaited: frozenset[str]
    """Steps that must have ended first, including those of `required`."""
    reads: frozenset[str]
    """Steps whose answers its arguments or its condition refer to."""
    holds: Callable[[Scope], bool] | None
    """Its condition, which raises ConditionFault; None: it has none."""
    on_failure: str


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    steps: tuple[PlanStep, ...]
    """In the order in which they are written."""
    output: JsonValue


def check_plan(manifest: Manifest) -> tuple[CheckedPlan | None, tuple[str, ...]]:
    """Return the plan of a manifest that has one, or its problems, each with its place."""
    assert manifest.plan is not None
    plan, problems, steps = manifest.plan, list[str](), list[PlanStep]()
    before: dict[str, Step] = {}
    for at, step in enumerate(plan.steps):
        reading = _Reading(manifest, before, plan.steps, f"plan.steps[{at}]", step)
        steps.append(reading.step(step, step.on_failure or plan.on_failure))
        problems += reading.problems
        if step.id in before:
            problems.append(f"plan.steps[{at}].id: `{step.id}` is the id of another step; choose one of its own")
        before[step.id] = step
    reading = _Reading(manifest, before, plan.steps, "plan", None)
    reading.references_in(plan.output, "plan.output")
    problems += reading.problems
    return (None if problems else CheckedPlan(tuple(steps), plan.output)), tuple(problems)


def fill_references(value: JsonValue, scope: Scope) -> JsonValue:
    """Return the value with its references replaced by their targets. Raises Absent."""
    if isinstance(value, dict):
        if REFERENCE in value and value.keys() <= _REFERENCE_KEYS:
            return _follow_reference(value, scope)
        return {name: fill_references(member, scope) for name, member in value.items()}
    return [fill_references(item, scope) for item in value] if isinstance(value, list) else value


def look_up(pointer: str, scope: Scope) -> JsonValue:
    """Return the value at a JSON Pointer (RFC 6901). Raises Absent."""
    found: JsonValue = dict(scope)
    for name in names_of(pointer):
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name)]
        else:
            raise Absent(pointer)
    return found


def _follow_reference(value: JsonObject, scope: Scope) -> JsonValue:
    try:
        return look_up(str(value[REFERENCE]), scope)
    except Absent:
        if DEFAULT in value:
            return fill_references(value[DEFAULT], scope)
        raise


class _Reading:
    """The references and problems found in one step, or in the output."""

    def __init__(
        self, manifest: Manifest, before: Mapping[str, Step], steps: Sequence[Step], place: str, step: Step | None
    ) -> None:
        self.problems: list[str] = []
        self._manifest = manifest
        self._before = dict(before)
        self._ids = {each.id for each in steps}
        self._place = place
        self._has_item = step is not None and step.for_each is not None
        self._own = "" if step is None else step.id

    def step(self, step: Step, on_failure: str) -> PlanStep:
        place = self._place
        required, awaited = (
            {*self._check_ids(step.needs, f"{place}.needs")},
            {*self._check_ids(step.after, f"{place}.after")},
        )
        found = self.references_in(step.args, f"{place}.args")
        if step.for_each is not None:
            found.append(Reference(step.for_each, False, f"{place}.for_each"))
            self._check_pointer(step.for_each, found[-1].place, has_item=False)
        reads: set[str] = set()
        for reference in found:
            named = {*_step_of(reference.pointer)}
            reads |= named
            (awaited if reference.has_default or not _is_result(reference.pointer) else required).update(named)
        holds, asked = self._condition(step)
        awaited |= asked
        if step.compensate is not None:
            self._check_compensation(step)
        self._check_tool(step.tool, f"{place}.tool")
        return PlanStep(
            step, frozenset(required), frozenset(required | awaited), frozenset(reads | asked), holds, on_failure
        )

    def references_in(self, value: JsonValue, place: str) -> list[Reference]:
        """Return the references in a value, each checked."""
        return [*self._references(value, place, 0)]

    def _references(self, value: JsonValue, place: str, depth: int) -> Iterator[Reference]:
        if depth > _DEPTH_MAX:
            self.problems.append(f"{place}: nested more than {_DEPTH_MAX} levels deep")
        elif isinstance(value, dict) and REFERENCE in value:
            yield from self._reference(value, place, depth)
        elif isinstance(value, dict):
            for name, member in value.items():
                yield from self._references(member, f"{place}.{name}", depth + 1)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                yield from self._references(item, f"{place}[{at}]", depth + 1)

    def _reference(self, value: JsonObject, place: str, depth: int) -> Iterator[Reference]:
        """Yield the reference that an object is, and those in its default."""
        pointer = value[REFERENCE]
        if not value.keys() <= _REFERENCE_KEYS:
            strange = min(value.keys() - _REFERENCE_KEYS)
            self.problems.append(f"{place}: beside `$from` only `default` may stand, not `{strange[:64]}`")
            return
        if not isinstance(pointer, str) or not pointer.startswith("/"):
            self.problems.append(f"{place}.$from: must be a JSON Pointer such as `/steps/ID/result`")
            return
        if self._check_pointer(pointer, f"{place}.$from", has_item=self._has_item):
            yield Reference(pointer, DEFAULT in value, place)
        # The target of a default may be missing too, which is no reason to skip the step.
        for other in self._references(value.get(DEFAULT), f"{place}.default", depth + 1):
            yield replace(other, has_default=True)

    def _check_pointer(self, pointer: str, place: str, *, has_item: bool) -> bool:
        """Return whether the pointer can have a target; otherwise note the problem."""
        root, *rest = names_of(pointer)
        problem = ""
        if root == "steps":
            problem = self._problem_of_step(rest)
        elif root == "input":
            problem = self._problem_of_input(rest)
        elif root not in ("item", "index"):
            problem = f"`/{root[:64]}` is nothing; a reference begins with /input, /steps/ID, /item or /index"
        elif not has_item:
            problem = f"`/{root}` is there in a step with `for_each` alone"
        if problem:
            self.problems.append(f"{place}: {problem}")
        return not problem

    def _problem_of_step(self, rest: Sequence[str]) -> str:
        if not rest:
            return "`/steps` alone is nothing; name a step, such as /steps/ID/result"
        if wrong := self._problem_of_id(rest[0]):
            return wrong
        if len(rest) < 2 or rest[1] not in _PARTS:
            return f"of a step there are {', '.join(_PARTS)}: write /steps/{rest[0]}/result"
        return ""

    def _problem_of_id(self, name: str) -> str:
        if name in self._before:
            return ""
        if name == self._own:
            return f"the step `{name}` cannot wait for itself"
        if name in self._ids:
            return f"the step `{name}` stands later; a step refers to steps before it alone: move one of them"
        return f"there is no step `{name[:64]}`"

    def _problem_of_input(self, rest: Sequence[str]) -> str:
        schema = self._manifest.input_schema
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or "patternProperties" in schema:
            return ""
        is_known = isinstance(properties, Mapping) and (not rest or rest[0] in properties)
        return "" if is_known else f"input_schema has no property `{''.join(rest[:1])[:64]}`"

    def _check_ids(self, ids: Sequence[str], place: str) -> Iterator[str]:
        for name in ids:
            if wrong := self._problem_of_id(name):
                self.problems.append(f"{place}: {wrong}")
            else:
                yield name

    def _condition(self, step: Step) -> tuple[Callable[[Scope], bool] | None, set[str]]:
        """Return the condition, and the steps that it reads."""
        condition, place = step.condition, f"{self._place}.if"
        if condition is None:
            return None, set()
        if isinstance(condition, PointerTest):
            self._check_pointer(condition.value, f"{place}.value", has_item=False)
            return _compile_test(condition), {*_step_of(condition.value)}
        try:
            expression = Expression(condition, _VARIABLES)
        except ValueError as error:
            self.problems.append(f"{place}: {error}")
            return None, set()
        members = expression.members.get("steps", ())
        reads = {*self._before} if members is None else {*self._check_ids(members, place)}
        return (lambda scope: expression.holds({name: scope[name] for name in expression.names})), reads

    def _check_compensation(self, step: Step) -> None:
        assert step.compensate is not None
        self._before[step.id] = step
        self.references_in(step.compensate.args, f"{self._place}.compensate.args")
        self._check_tool(step.compensate.tool, f"{self._place}.compensate.tool")

    def _check_tool(self, tool: str, place: str) -> None:
        if "/" not in tool or any(char in tool for char in "*?["):
            self.problems.append(f"{place}: `{tool[:80]}` must be the full name of one tool, such as core/fs.readText")


def _compile_test(test: PointerTest) -> Callable[[Scope], bool]:
    def holds(scope: Scope) -> bool:
        try:
            found = look_up(test.value, scope)
        except Absent:
            return not test.exists and test.equals is UNSET
        return test.exists if test.equals is UNSET else _are_equal(found, test.equals) == test.exists

    return holds


def _are_equal(one: JsonValue, other: JsonValue) -> bool:
    """Compare as JSON values: `true` is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _step_of(pointer: str) -> Iterator[str]:
    root, *rest = names_of(pointer)
    if root == "steps" and rest:
        yield rest[0]


def _is_result(pointer: str) -> bool:
    """Return whether the target exists only when the step has succeeded."""
    return names_of(pointer)[2:3] == ["result"]
