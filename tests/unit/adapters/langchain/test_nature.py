"""Where a tool's code runs: the event loop only for code that is async at heart."""

from __future__ import annotations

import pytest
from langchain_core.tools import BaseTool, StructuredTool

from tests.fakes import langchain_tools as fakes
from toolhub_service.adapters.langchain.contract import is_generator, runs_on_loop


@pytest.mark.parametrize("tool", fakes.LOOP_TOOLS, ids=lambda tool: tool.name)
def test_async_code_runs_on_the_loop(tool: BaseTool) -> None:
    assert runs_on_loop(tool)


@pytest.mark.parametrize("tool", fakes.WORKER_TOOLS, ids=lambda tool: tool.name)
def test_sync_code_and_code_that_is_async_by_name_only_runs_in_a_worker(tool: BaseTool) -> None:
    assert not runs_on_loop(tool)


def test_what_has_both_runs_on_the_loop() -> None:
    async def later(text: str) -> str:
        return text

    def now(text: str) -> str:
        return text

    assert runs_on_loop(StructuredTool.from_function(now, later, description="Both."))
    assert not runs_on_loop(StructuredTool.from_function(now, description="One."))


def test_generators_are_told() -> None:
    assert is_generator(fakes.streams)
    assert not is_generator(fakes.echo)
    assert not is_generator(fakes.add)
