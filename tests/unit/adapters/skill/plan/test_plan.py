"""Plans of skills: what is found wrong with one before it runs, in which order its calls are made, what a failure does.

The calls are answered by functions of the test; that they walk the nine steps is held in tests/rpc/test_skill_plans.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from toolhub_service.adapters.skill.manifest import read_manifest
from toolhub_service.adapters.skill.plan.engine import PlanEngine
from toolhub_service.adapters.skill.plan.steps import CheckedPlan, check_plan
from toolhub_service.domain.call import Suspended
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import Plan, Progress, ToolResult
from toolhub_service.domain.tool import ToolSpec

INPUT = {"type": "object", "additionalProperties": False, "properties": {"mode": {}, "rows": {}, "name": {}}}


def checked(steps: list[dict[str, Any]], output: Any = None, **plan: Any) -> tuple[CheckedPlan | None, tuple[str, ...]]:
    document = {
        "mode": "plan",
        "input_schema": INPUT,
        "output_schema": {"type": "object"},
        "plan": {"steps": steps, "output": output, **plan},
    }
    return check_plan(read_manifest(json.dumps(document).encode()))


def step(id: str, tool: str = "t/echo", /, **fields: Any) -> dict[str, Any]:
    return {"id": id, "tool": tool, **fields}


def when(condition: Any) -> dict[str, Any]:
    return {"if": condition}


def ref(pointer: str, **default: Any) -> dict[str, Any]:
    return {"$from": pointer, **default}


class FakeInnerCalls:
    """Answers calls of `t/echo` with their arguments, and of others as scripted."""

    depth = 0

    def __init__(self, **tools: Callable[[JsonObject], JsonValue]) -> None:
        self.made: list[tuple[str, JsonValue]] = []
        self.under_way = 0
        self.most = 0
        self._tools = tools

    async def offered_tools(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        return ()

    def restrict_to(self, tools: Iterable[str], max_calls: int) -> InnerCalls:
        return self

    def durable(self) -> InnerCalls:
        return self

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        raise AssertionError

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        self.made.append((purpose.removeprefix("test: "), args.get("v")))
        number = len(self.made)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(20 // number):  # those that began first end last
                await asyncio.sleep(0)
            value = self._tools.get(tool.removeprefix("t/"), echo)(args)
            return ToolResult(True, f"call_{number}", tool, value)
        except ToolFailure as failure:
            return ToolResult(False, f"call_{number}", tool, error=failure.error)
        finally:
            self.under_way -= 1

    @property
    def order(self) -> str:
        return " ".join(f"{name}{'' if value is None else f'={value}'}" for name, value in self.made)


def echo(given: JsonObject) -> JsonValue:
    return given


def fail(_: JsonObject) -> JsonValue:
    raise ToolFailure(ToolError(ErrorKind.POLICY_DENIED, "No."))


async def ran(calls: FakeInnerCalls, *steps: dict[str, Any], given: JsonObject | None = None, **plan: Any) -> JsonValue:
    made, problems = checked([*steps], **plan)
    assert made is not None, problems
    reported: list[Progress] = []
    engine = PlanEngine(made, given or {}, calls, purpose="test", parallel_calls=4, report=reported.append)
    value = await engine.value()
    assert reported == [] or reported[-1].total == len(steps)
    return value


async def test_data_flows_by_pointers_and_steps_that_wait_for_nothing_run_together() -> None:
    calls = FakeInnerCalls()
    value = await ran(
        calls,
        step("a", args={"v": ref("/input/name")}),
        step("b", args={"v": "b"}),
        step("c", args={"v": ref("/steps/a/result/v"), "list": [ref("/steps/b/result"), 1, None]}),
        step("d", after=["c"]),
        output={"c": ref("/steps/c/result"), "no": ref("/input/rows/0", default="none")},
        given={"name": "x"},
    )
    assert value == {"c": {"v": "x", "list": [{"v": "b"}, 1, None]}, "no": "none"}
    assert (calls.order, calls.most) == ("a=x b=b c=x d", 2)


async def test_for_each_calls_item_by_item_or_several_at_once_in_an_order_that_never_depends_on_time() -> None:
    rows: JsonValue = [3, 1, 2]
    for parallel, most in ((1, 2), (2, 3), (8, 4)):
        calls = FakeInnerCalls()
        each = step("e", for_each="/input/rows", parallel=parallel, args={"v": ref("/item"), "at": ref("/index")})
        value = await ran(
            calls, each, step("other"), step("last", needs=["e"]), output=ref("/steps/e/result"), given={"rows": rows}
        )
        assert value == [{"v": 3, "at": 0}, {"v": 1, "at": 1}, {"v": 2, "at": 2}]
        assert [made for made in calls.made if made[0] == "e"] == [("e", 3), ("e", 1), ("e", 2)]
        assert calls.made[-1] == ("last", None)
        assert calls.most == most
    calls = FakeInnerCalls()
    assert await ran(calls, each, step("last", needs=["e"]), output=ref("/steps/e/result"), given={"rows": []}) == []
    assert calls.order == "last"
    for wrong, expected in (([0] * 101, "has 101 items; `max_items` is 100"), ({}, "is no array")):
        with pytest.raises(ToolFailure) as refused:
            await ran(FakeInnerCalls(), each, given={"rows": wrong})
        assert expected in refused.value.error.message


async def test_branches_are_chosen_by_conditions_and_what_needs_a_skipped_step_is_skipped() -> None:
    for mode, order, merged in (
        ("fast", "fast=fast joined=fast merge", "fast"),
        ("slow", "slow=slow slower=slow joined=slow merge", "slow"),
    ):
        calls = FakeInnerCalls()
        value = await ran(
            calls,
            step("fast", args={"v": "fast"}, **when("input.mode == 'fast'")),
            step("slow", args={"v": "slow"}, **when({"value": "/input/mode", "equals": "slow"})),
            step("slower", args={"v": ref("/steps/slow/result/v")}),
            step("joined", args={"v": ref("/steps/slow/result/v", default=ref("/steps/fast/result/v"))}),
            step("never", needs=["slow"], **when("steps.slow.ok && has(input.rows)")),
            step(
                "merge",
                args={
                    "fast": ref("/steps/fast/result/v", default=None),
                    "slow": ref("/steps/slower/result/v", default=None),
                },
            ),
            output=ref("/steps/merge/result"),
            given={"mode": mode},
        )
        assert calls.order == order
        assert isinstance(value, dict)
        assert value[mode] == merged


@pytest.mark.parametrize(
    ("on_failure", "order", "expected"),
    [
        ("stop", "a=1 b=2 each=1 each=2 bad", "What earlier steps did is not undone: a, b, each."),
        (
            "compensate",
            "a=1 b=2 each=1 each=2 bad undo each=2 undo each=1 undo b=2",
            "Undone: each, each, b. Not undone: a.",
        ),
        ("continue", "a=1 b=2 each=1 each=2 bad last", ""),
    ],
)
@pytest.mark.promise("skills.plans-are-checked")
async def test_a_failed_step_stops_the_plan_is_undone_or_is_passed_over(
    on_failure: str, order: str, expected: str
) -> None:
    calls = FakeInnerCalls(bad=fail)
    undo = {"tool": "t/undo", "args": {"v": ref("/steps/b/result/v")}}
    undo_each = {"tool": "t/undo", "args": {"v": ref("/item")}}
    run = ran(
        calls,
        step("a", args={"v": 1}),
        step("b", args={"v": 2}, needs=["a"], compensate=undo),
        step("each", args={"v": ref("/item")}, for_each="/input/rows", after=["b"], compensate=undo_each),
        step("bad", "t/bad", needs=["each"], on_failure=on_failure),
        step("skipped", needs=["bad"]),
        step("last", after=["skipped"]),
        output={"why": ref("/steps/bad/error/kind"), "skipped": ref("/steps/skipped/skipped")},
        given={"rows": [1, 2]},
    )
    if not expected:
        assert await run == {"why": "POLICY_DENIED", "skipped": True}
    else:
        with pytest.raises(ToolFailure) as refused:
            await run
        error = refused.value.error
        assert error.message == f"The step `bad` (t/bad) failed: No. {expected}"
        assert (error.kind, error.is_retryable) == (ErrorKind.POLICY_DENIED, False)
    assert calls.order == order


async def test_a_step_that_waits_for_a_person_resumes_after_the_calls_beside_it() -> None:
    def wait(_: JsonObject) -> JsonValue:
        raise Suspended("appr_1")

    calls = FakeInnerCalls(wait=wait)
    with pytest.raises(Suspended):
        await ran(calls, step("w", "t/wait"), step("beside", args={"v": 1}), step("after", needs=["beside"]))
    assert (calls.order, calls.under_way) == ("w beside=1", 0)


async def test_a_missing_value_fails_the_step_with_a_sentence() -> None:
    cases = {
        "args": (step("a", args={"v": ref("/input/rows/7")}), "refers to /input/rows/7, which is not there"),
        "for_each": (step("a", for_each="/input/rows"), "refers to /input/rows, which is not there"),
        "if": (step("a", **when("input.mode.x == 1")), "Its condition cannot be answered: it reads `mode`"),
        "output": (step("a"), "`output` of the plan refers to /input/name, which is not there"),
    }
    for case, expected in cases.values():
        with pytest.raises(ToolFailure) as refused:
            await ran(FakeInnerCalls(), case, output=ref("/input/name"))
        assert expected in refused.value.error.message
        assert refused.value.error.kind is ErrorKind.EXECUTION_ERROR


@pytest.mark.promise("skills.plans-are-checked")
def test_an_invalid_plan_is_found_when_it_is_loaded() -> None:
    a, args = step("a"), "plan.steps[1].args.v"
    deep: Any = ref("/input/mode")
    for _ in range(40):
        deep = [deep]
    cases: dict[str, tuple[list[dict[str, Any]], str]] = {
        "an id twice": ([a, a], "plan.steps[1].id: `a` is the id of another step"),
        "itself": (
            [a, step("b", args={"v": ref("/steps/b/result")})],
            f"{args}.$from: the step `b` cannot wait for itself",
        ),
        "a circle": (
            [step("a", needs=["b"]), step("b", needs=["a"])],
            "plan.steps[0].needs: the step `b` stands later",
        ),
        "a later one": ([step("a", args={"v": ref("/steps/b/ok")}), step("b")], "the step `b` stands later"),
        "none": ([a, step("b", after=["c"])], "plan.steps[1].after: there is no step `c`"),
        "no part": (
            [a, step("b", args={"v": ref("/steps/a/value")})],
            "of a step there are result, ok, skipped, error",
        ),
        "no part at all": ([a, step("b", args={"v": ref("/steps/a")})], "write /steps/a/result"),
        "all": ([a, step("b", args={"v": ref("/steps")})], "`/steps` alone is nothing"),
        "no argument": ([a, step("b", args={"v": ref("/input/nam")})], "input_schema has no property `nam`"),
        "another root": ([a, step("b", args={"v": ref("/env/HOME")})], "`/env` is nothing"),
        "no item": ([a, step("b", args={"v": ref("/item/x")})], "`/item` is there in a step with `for_each` alone"),
        "no pointer": ([a, step("b", args={"v": ref("steps.a")})], "must be a JSON Pointer"),
        "more beside it": (
            [a, step("b", args={"v": ref("/input/mode", then=1)})],
            "only `default` may stand, not `then`",
        ),
        "too deep": ([a, step("b", args={"v": deep})], "nested more than 32 levels deep"),
        "a glob": ([a, step("b", "core/*")], "must be the full name of one tool"),
        "no CEL": ([a, step("b", **when("input.mode =="))], "plan.steps[1].if: not a CEL expression"),
        "another variable": ([a, step("b", **when("principal.id == 'x'"))], "unknown variable `principal`"),
        "no bound": ([a, step("b", **when("'x'.matches(input.mode)"))], "`matches` needs a literal pattern"),
        "a condition on none": ([a, step("b", **when("steps.c.ok"))], "plan.steps[1].if: there is no step `c`"),
        "a test of none": (
            [a, step("b", **when({"value": "/steps/c/ok"}))],
            "plan.steps[1].if.value: there is no step",
        ),
        "an undoing": (
            [a, step("b", compensate={"tool": "t/undo", "args": {"v": ref("/steps/c/ok")}})],
            "plan.steps[1].compensate.args.v.$from: there is no step `c`",
        ),
    }
    problems = {name: "\n".join(checked(steps)[1]) for name, (steps, _) in cases.items()}
    assert not {name: problems[name] for name, (_, expected) in cases.items() if expected not in problems[name]}
    assert checked([a], output=ref("/steps/z/result"))[1] == ("plan.output.$from: there is no step `z`",)
