"""Calls that neither answer nor report progress end before their deadline; progress keeps others alive."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.mcp_harness import McpHarness, over_http, over_stdio
from tests.fakes.mcp_servers.scripted import Script
from toolhub_service.adapters.definitions import UNSET_LIMITS, SourceTerms
from toolhub_service.adapters.mcp.idle import IdleLimit
from toolhub_service.app.config_files.sources_file import to_source
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits
from toolhub_service.sections.source_config import SourceInvalid, ToolTerms

GENERATIONS = ["modern", "legacy"]


def idle_after(limit_s: float) -> ToolLimits:
    return ToolLimits(timeout_s=300.0, idle_timeout_s=limit_s)


async def idled(harness: McpHarness, name: str, args: dict[str, object], limit_s: float) -> ToolFailure:
    with pytest.raises(ToolFailure) as failure:
        await harness.run(name, args, limits=idle_after(limit_s))
    return failure.value


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_call_without_progress_ends_at_the_idle_limit_and_its_server_is_told(generation: str) -> None:
    async with over_http(Script(generation=generation)) as harness:
        error = (await idled(harness, "hangs", {}, 0.3)).error
        assert (error.kind, error.details) == (ErrorKind.TIMEOUT, {"idle_timeout_s": 0.3})
        assert "neither answered nor reported progress for 0.3 s" in error.message
        assert "`idle_timeout_s` of its source" in error.message
        async with asyncio.timeout(60):
            await harness.script.stopped.wait()


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_progress_renews_the_idle_limit_as_often_as_it_comes(generation: str) -> None:
    async with over_stdio(generation) as harness:
        args = {"times": 30, "every_s": 0.1}
        assert await harness.value("beats", args, limits=idle_after(2.0)) == {"text": "done"}


async def test_a_call_that_stops_reporting_is_idle() -> None:
    async with over_http(Script(generation="legacy")) as harness:
        error = (await idled(harness, "beats", {"times": 3, "every_s": 0.01, "then_hangs": True}, 0.5)).error
        assert error.details == {"idle_timeout_s": 0.5}
        assert len(harness.sink.progresses) == 3


async def test_a_call_is_not_idle_while_a_person_is_asked() -> None:
    idle, is_answered, was_asked = IdleLimit(0.05), asyncio.Event(), False
    asyncio.get_running_loop().call_later(0.2, is_answered.set)

    async def call() -> None:
        nonlocal was_asked
        async with idle.enforce():
            with idle.suspend():
                await is_answered.wait()
            was_asked = True
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await call()
    assert was_asked


@pytest.mark.parametrize(
    ("source", "tool", "expected"),
    [
        ({"timeout_s": 0.0}, {}, UNSET_LIMITS),
        ({"timeout_s": 0.0, "idle_timeout_s": 5.0}, {}, {"timeout_s": 300.0, "idle_timeout_s": 5.0}),
        ({"timeout_s": 600.0}, {}, {"timeout_s": 600.0, "call_max_s": 600.0, "idle_timeout_s": 0.0}),
        ({"timeout_s": 600.0, "idle_timeout_s": 9.0}, {}, {"timeout_s": 600.0, "idle_timeout_s": 9.0}),
        ({"timeout_s": 0.0}, {"timeout_s": 7.0}, {"timeout_s": 7.0, "call_max_s": 7.0, "idle_timeout_s": 0.0}),
        ({"timeout_s": 0.0}, {"idle_timeout_s": 7.0}, {"call_max_in_job_s": 3_600.0, "idle_timeout_s": 7.0}),
    ],
)
def test_a_limit_that_the_operator_names_is_the_only_one_unless_another_is_named_beside_it(
    source: dict[str, float], tool: dict[str, float], expected: ToolLimits | dict[str, float]
) -> None:
    idle_s = source.get("idle_timeout_s", 0.0)
    terms = SourceTerms(ToolKind.MCP, "fake", timeout_s=source["timeout_s"], idle_timeout_s=idle_s)
    empty = {"input_schema": {}, "output_schema": {}, "description": "", "annotations": Annotations()}
    limits = terms.spec("fake/t", "t", ToolTerms(**tool), **empty).limits  # type: ignore[arg-type]
    if isinstance(expected, ToolLimits):
        assert limits == expected
    else:
        assert {name: getattr(limits, name) for name in expected} == expected


def test_only_sources_whose_tools_report_progress_have_an_idle_limit() -> None:
    to_source("a", {"command": "x", "tools": {"*": {"idle_timeout_s": 5}}})
    with pytest.raises(SourceInvalid, match=r"sources\.a\.tools\.\*\.idle_timeout_s: only for sources of kind mcp"):
        to_source("a", {"kind": "langchain", "load": ["a.b:c"], "tools": {"*": {"idle_timeout_s": 5}}})
