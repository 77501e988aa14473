"""Steps that are counted, and where work that takes many of them is done."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.fakes.util_context import bare_context, called
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.tools.mustache import RenderLimits
from toolhub_service.tools.query_limits import QueryLimits
from toolhub_service.tools.step_budget import AT_ONCE_STEPS, LongSteps, OutOfSteps, StepBudget
from toolhub_service.tools.util_tools import JsonSelect, TemplateRender


class SteppedWork:
    """Takes so many steps, and knows in which thread each of its beginnings was."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.threads: list[threading.Thread] = []

    def __call__(self, limit: int) -> str:
        self.threads.append(threading.current_thread())
        StepBudget(limit, "Ask for less.").spend(self.steps)
        return "done"


async def test_few_steps_are_taken_at_once() -> None:
    work, context = SteppedWork(10), bare_context()
    assert await LongSteps(100, at_once=10).run(work, context) == "done"
    assert work.threads == [threading.main_thread()]
    assert not context.is_large


async def test_many_steps_are_begun_again_in_a_thread_and_the_answer_is_large() -> None:
    work, context = SteppedWork(11), bare_context()
    assert await LongSteps(100, at_once=10).run(work, context) == "done"
    assert len(work.threads) == 2
    assert work.threads[1] is not threading.main_thread()
    assert context.is_large


async def test_too_many_steps_are_refused_by_the_whole_limit() -> None:
    with pytest.raises(OutOfSteps) as refused:
        await LongSteps(100, at_once=10).run(SteppedWork(101), bare_context())
    assert refused.value.error.kind is ErrorKind.INVALID_INPUT
    assert refused.value.error.details["max_steps"] == 100


async def test_one_piece_of_long_work_is_done_at_a_time() -> None:
    held, second, long = threading.Event(), SteppedWork(11), LongSteps(100, at_once=10)
    began = threading.Event()

    def first(limit: int) -> None:
        if limit == 10:
            StepBudget(limit, "").spend(11)
        began.set()
        assert held.wait(60.0)

    running = asyncio.create_task(long.run(first, bare_context()))
    assert await asyncio.to_thread(began.wait, 60.0)
    waiting = asyncio.create_task(long.run(second, bare_context()))
    await asyncio.sleep(0)
    assert len(second.threads) == 1
    held.set()
    await running
    assert await waiting == "done"
    assert len(second.threads) == 2


@pytest.mark.parametrize("path", ["a", "a[?@ > `0`]"])
async def test_a_large_selection_is_written_in_a_thread_and_a_small_one_is_not(path: str) -> None:
    for size, is_large in [(100, False), (AT_ONCE_STEPS + 1, True)]:
        context = bare_context()
        assert await called(JsonSelect(), context, json={"a": [1] * size}, path=path) == {"value": [1] * size}
        assert context.is_large is is_large


async def test_a_long_text_is_selected_at_once() -> None:
    context = bare_context()
    assert await called(JsonSelect(), context, json={"a": "x" * 100_000}, path="a") == {"value": "x" * 100_000}
    assert not context.is_large


async def test_a_large_value_is_written_as_json_in_a_thread() -> None:
    for size, is_large in [(100, False), (AT_ONCE_STEPS + 1, True)]:
        context = bare_context()
        rendered = await called(TemplateRender(), context, template="{{a}}", data={"a": [1] * size})
        assert rendered == {"text": f"[{', '.join(['1'] * size)}]"}
        assert context.is_large is is_large


def test_limits_below_what_is_done_at_once_stay() -> None:
    assert QueryLimits(steps=5).at_once.steps == RenderLimits(steps=5).at_once.steps == 5
