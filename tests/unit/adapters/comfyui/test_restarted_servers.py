"""A hub that died while it submitted, and a ComfyUI that may have been started anew before the next hub looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.comfyui import How, Op
from tests.fakes.remote_harness import WITHIN_S
from tests.unit.adapters.comfyui.comfy_stage import ComfyStage, comfy_stage, failure_of, submitted_elsewhere
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.result import Outcome

pytestmark = pytest.mark.promise("workflow.never-twice", "workflow.never-false-done")
VERSIONS = ["0.33.0", "0.3.64"]


@pytest.fixture(params=VERSIONS)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ComfyStage]:
    async with comfy_stage(tmp_path, request.param) as stage:
        yield stage


async def died_while_submitting(stage: ComfyStage, how: How) -> None:
    """The process ends when the prompt was sent and nothing came back; the server has it, or not, as `how` says."""
    before = stage.comfy.count(Op.SUBMIT)
    stage.comfy.fault(Op.SUBMIT, how)
    stage.comfy.fault(Op.READ, How.HOLD, -1)
    running = stage.begin("blur")
    await stage.comfy.until(lambda: stage.comfy.count(Op.SUBMIT) > before and stage.comfy.faults.held > 0)
    running.cancel()
    await asyncio.wait({running})
    stage.comfy.faults.clear()
    assert not stage.kept.marks["job-1"].accepted


@asynccontextmanager
async def taken_over(stage: ComfyStage) -> AsyncIterator[tuple[ComfyStage, asyncio.Task[Outcome]]]:
    """The next process, at work on the same job."""
    successor = await stage.successor()
    running = successor.begin("blur")
    try:
        yield successor, running
    finally:
        running.cancel()
        await asyncio.wait({running})
        await successor.close()


async def lost(stage: ComfyStage) -> str:
    """What the next process says of it, which must be that nobody knows."""
    async with taken_over(stage) as (successor, running):
        while not running.done():
            successor.clock.skipped_s += 120  # its patience is a minute
            await asyncio.wait({running}, timeout=0.05)
        error = await failure_of(running)
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
    return error.message


@pytest.mark.parametrize("how", [How.LOSE_ANSWER, How.DROP], ids=["taken", "never there"])
async def test_what_a_server_that_was_started_anew_does_not_know_may_have_run(stage: ComfyStage, how: How) -> None:
    await stage.run("blur", job_id="job-0")
    await died_while_submitting(stage, how)
    sent = len(stage.comfy.submitted)
    await stage.comfy.restart()
    assert "may have restarted" in await lost(stage)
    assert len(stage.comfy.submitted) == sent


async def test_runs_of_others_since_the_restart_prove_nothing(stage: ComfyStage) -> None:
    await stage.run("blur", job_id="job-0")
    await died_while_submitting(stage, How.LOSE_ANSWER)
    await stage.comfy.restart()
    async with taken_over(stage) as (successor, _):
        await successor.run("blur", job_id="job-2")
    assert "may have restarted" in await lost(stage)
    assert len(stage.comfy.submitted) == 3


async def test_a_server_that_still_knows_what_it_knew_has_never_had_it_and_it_is_sent_again(stage: ComfyStage) -> None:
    await stage.run("blur", job_id="job-0")
    await died_while_submitting(stage, How.DROP)
    async with taken_over(stage) as (_, running), asyncio.timeout(WITHIN_S):
        assert len((await running).artifacts) == 1
    assert [*stage.comfy.submissions().values()] == [1, 1]


async def test_one_that_the_server_knows_is_followed_and_not_sent_again(stage: ComfyStage) -> None:
    await died_while_submitting(stage, How.LOSE_ANSWER)
    async with taken_over(stage) as (_, running), asyncio.timeout(WITHIN_S):
        assert len((await running).artifacts) == 1
    assert [*stage.comfy.submissions().values()] == [1]


async def test_of_a_server_that_had_never_run_anything_nobody_can_tell_a_restart(stage: ComfyStage) -> None:
    await died_while_submitting(stage, How.DROP)
    assert "may have restarted" in await lost(stage)
    assert stage.comfy.submitted == []


async def test_the_history_of_others_is_a_witness_too(tmp_path: Path) -> None:
    async with comfy_stage(tmp_path) as stage:
        await stage.run("blur", job_id="job-0")
        fresh = await stage.successor()
        await died_while_submitting(fresh, How.DROP)
        async with taken_over(fresh) as (_, running), asyncio.timeout(WITHIN_S):
            assert len((await running).artifacts) == 1


async def test_what_died_before_it_was_sent_is_sent(stage: ComfyStage) -> None:
    """Nothing is known of the server, and nothing has to be: the mark says that no server had it."""
    stage.comfy.fault(Op.SOCKET, How.HOLD, -1)
    running = stage.begin("blur")
    await stage.comfy.until(lambda: stage.comfy.faults.held > 0)
    running.cancel()
    await asyncio.wait({running})
    stage.comfy.faults.clear()
    async with taken_over(stage) as (_, again), asyncio.timeout(WITHIN_S):
        assert len((await again).artifacts) == 1
    assert [*stage.comfy.submissions().values()] == [1]


async def test_a_server_that_is_not_configured_any_more_is_not_replaced_by_another(tmp_path: Path) -> None:
    async with comfy_stage(tmp_path, "0.33.0", "0.33.0") as stage:
        stage.servers[1].fault(Op.ANY, How.ERROR, -1)
        await stage.read()
        await died_while_submitting(stage, How.LOSE_ANSWER)
        stage.servers[1].faults.clear()
        stage.servers, away = stage.servers[1:], stage.servers[0]
        stage.terms = replace(stage.terms, backends=stage.terms.backends[1:])
        assert "no longer configured" in await lost(stage)
        assert (len(away.submitted), stage.servers[0].submitted) == (1, [])


async def test_a_gateway_before_a_server_that_is_started_anew_is_a_break(tmp_path: Path) -> None:
    """This hub lives on and needs no witness; but it must see the server go behind a proxy that stays."""
    async with comfy_stage(tmp_path) as stage:
        stage.comfy.fault(Op.SUBMIT, How.LOSE_ANSWER)
        stage.comfy.fault(Op.JOB, How.GATEWAY)
        stage.comfy.fault(Op.JOB, How.HIDE, -1)
        running = stage.begin("blur")
        await stage.comfy.until_asked(Op.JOB, 4)
        stage.clock.skipped_s = 120
        assert (await failure_of(running)).kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(stage.comfy.submitted) == 1


@pytest.mark.promise("comfyui.restart")
async def test_a_waiting_prompt_that_somebody_removes_is_lost_and_not_cancelled(stage: ComfyStage) -> None:
    await stage.run("blur", {"width": 32}, job_id="job-0")  # known to the server and to us before the one that is lost
    stage.comfy.hold("ImageBlur")
    first = stage.begin("blur", job_id="job-1")
    await stage.comfy.until_held("ImageBlur")
    second = stage.begin("blur", job_id="job-2")
    await stage.comfy.until_submitted(3)
    stage.comfy.lose(stage.comfy.submitted[-1].prompt_id)
    error = await failure_of(second)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert "it did not restart: somebody removed" in error.message
    stage.comfy.release()
    await asyncio.wait_for(first, 60)


@pytest.mark.promise("comfyui.restart")
async def test_a_restart_is_told_as_one_however_much_others_have_run_since(stage: ComfyStage) -> None:
    await stage.run("blur", {"width": 32}, job_id="job-0")  # of another width, or its cache would serve the next
    stage.comfy.hold("ImageBlur")
    running = stage.begin("blur")
    await stage.comfy.until_held("ImageBlur")
    stage.comfy.fault(Op.READ, How.ERROR, -1)
    await stage.comfy.restart()
    stage.comfy.release()
    for _ in range(3):
        await submitted_elsewhere(stage)
    await stage.comfy.until_idle()
    stage.comfy.faults.clear()
    error = await failure_of(running)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert "The server knows no earlier run either: it has restarted since" in error.message
