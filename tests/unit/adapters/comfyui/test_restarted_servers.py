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
from tests.unit.adapters.comfyui.comfy_harness import ComfyHarness, comfy_harness, failure_of, submitted_elsewhere
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import Outcome

pytestmark = pytest.mark.promise("workflow.never-twice", "workflow.never-false-done")
VERSIONS = ["0.33.0", "0.3.64"]


@pytest.fixture(params=VERSIONS)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ComfyHarness]:
    async with comfy_harness(tmp_path, request.param) as harness:
        yield harness


async def died_while_submitting(harness: ComfyHarness, how: How) -> None:
    """The process ends when the prompt was sent and nothing came back; the server has it, or not, as `how` says."""
    before = harness.comfy.count(Op.SUBMIT)
    harness.comfy.fault(Op.SUBMIT, how)
    harness.comfy.fault(Op.READ, How.HOLD, -1)
    running = harness.begin("blur")
    await harness.comfy.until(lambda: harness.comfy.count(Op.SUBMIT) > before and harness.comfy.faults.held > 0)
    running.cancel()
    await asyncio.wait({running})
    harness.comfy.faults.clear()
    assert not harness.kept.marks["job-1"].accepted


@asynccontextmanager
async def taken_over(harness: ComfyHarness) -> AsyncIterator[tuple[ComfyHarness, asyncio.Task[Outcome]]]:
    """The next process, at work on the same job."""
    successor = await harness.successor()
    running = successor.begin("blur")
    try:
        yield successor, running
    finally:
        running.cancel()
        await asyncio.wait({running})
        await successor.close()


async def lost(harness: ComfyHarness) -> str:
    """What the next process says of it, which must be that nobody knows."""
    async with taken_over(harness) as (successor, running):
        while not running.done():
            successor.clock.skipped_s += 120  # its patience is a minute
            await asyncio.wait({running}, timeout=0.05)
        error = await failure_of(running)
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
    return error.message


@pytest.mark.parametrize("how", [How.LOSE_ANSWER, How.DROP], ids=["taken", "never there"])
async def test_a_call_unknown_to_a_restarted_server_may_have_run(harness: ComfyHarness, how: How) -> None:
    await harness.run("blur", job_id="job-0")
    await died_while_submitting(harness, how)
    sent = len(harness.comfy.submitted)
    await harness.comfy.restart()
    assert "may have restarted" in await lost(harness)
    assert len(harness.comfy.submitted) == sent


async def test_runs_of_others_since_the_restart_prove_nothing(harness: ComfyHarness) -> None:
    await harness.run("blur", job_id="job-0")
    await died_while_submitting(harness, How.LOSE_ANSWER)
    await harness.comfy.restart()
    async with taken_over(harness) as (successor, _):
        await successor.run("blur", job_id="job-2")
    assert "may have restarted" in await lost(harness)
    assert len(harness.comfy.submitted) == 3


async def test_a_server_that_still_knows_what_it_knew_has_never_had_it_and_it_is_sent_again(
    harness: ComfyHarness,
) -> None:
    await harness.run("blur", job_id="job-0")
    await died_while_submitting(harness, How.DROP)
    async with taken_over(harness) as (_, running), asyncio.timeout(WITHIN_S):
        assert len((await running).artifacts) == 1
    assert [*harness.comfy.submissions().values()] == [1, 1]


async def test_a_prompt_that_the_server_knows_is_followed_and_not_sent_again(harness: ComfyHarness) -> None:
    await died_while_submitting(harness, How.LOSE_ANSWER)
    async with taken_over(harness) as (_, running), asyncio.timeout(WITHIN_S):
        assert len((await running).artifacts) == 1
    assert [*harness.comfy.submissions().values()] == [1]


async def test_a_restart_of_a_server_without_history_cannot_be_detected(harness: ComfyHarness) -> None:
    await died_while_submitting(harness, How.DROP)
    assert "may have restarted" in await lost(harness)
    assert harness.comfy.submitted == []


async def test_the_history_of_others_proves_that_the_server_did_not_restart(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        await harness.run("blur", job_id="job-0")
        fresh = await harness.successor()
        await died_while_submitting(fresh, How.DROP)
        async with taken_over(fresh) as (_, running), asyncio.timeout(WITHIN_S):
            assert len((await running).artifacts) == 1


async def test_a_prompt_that_died_before_it_was_sent_is_sent(harness: ComfyHarness) -> None:
    """Nothing is known of the server, and nothing has to be: the mark says that no server had it."""
    harness.comfy.fault(Op.SOCKET, How.HOLD, -1)
    running = harness.begin("blur")
    await harness.comfy.until(lambda: harness.comfy.faults.held > 0)
    running.cancel()
    await asyncio.wait({running})
    harness.comfy.faults.clear()
    async with taken_over(harness) as (_, again), asyncio.timeout(WITHIN_S):
        assert len((await again).artifacts) == 1
    assert [*harness.comfy.submissions().values()] == [1]


async def test_a_server_that_is_not_configured_any_more_is_not_replaced_by_another(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.33.0") as harness:
        harness.servers[1].fault(Op.ANY, How.ERROR, -1)
        await harness.read()
        await died_while_submitting(harness, How.LOSE_ANSWER)
        harness.servers[1].faults.clear()
        harness.servers, away = harness.servers[1:], harness.servers[0]
        harness.terms = replace(harness.terms, backends=harness.terms.backends[1:])
        assert "no longer configured" in await lost(harness)
        assert (len(away.submitted), harness.servers[0].submitted) == (1, [])


async def test_a_gateway_before_a_server_that_is_started_anew_is_a_break(tmp_path: Path) -> None:
    """This hub lives on and needs no witness; but it must see the server go behind a proxy that stays."""
    async with comfy_harness(tmp_path) as harness:
        harness.comfy.fault(Op.SUBMIT, How.LOSE_ANSWER)
        harness.comfy.fault(Op.JOB, How.GATEWAY)
        harness.comfy.fault(Op.JOB, How.HIDE, -1)
        running = harness.begin("blur")
        await harness.comfy.until_asked(Op.JOB, 4)
        harness.clock.skipped_s = 120
        assert (await failure_of(running)).kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(harness.comfy.submitted) == 1


@pytest.mark.promise("comfyui.restart")
async def test_a_waiting_prompt_that_is_removed_is_lost_and_not_cancelled(harness: ComfyHarness) -> None:
    await harness.run(
        "blur", {"width": 32}, job_id="job-0"
    )  # known to the server and to us before the one that is lost
    harness.comfy.hold("ImageBlur")
    first = harness.begin("blur", job_id="job-1")
    await harness.comfy.until_held("ImageBlur")
    second = harness.begin("blur", job_id="job-2")
    await harness.comfy.until_submitted(3)
    harness.comfy.lose(harness.comfy.submitted[-1].prompt_id)
    error = await failure_of(second)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert "it did not restart: somebody removed" in error.message
    harness.comfy.release()
    await asyncio.wait_for(first, 60)


@pytest.mark.promise("comfyui.restart")
async def test_a_restart_is_detected_however_much_others_have_run_since(harness: ComfyHarness) -> None:
    await harness.run("blur", {"width": 32}, job_id="job-0")  # of another width, or its cache would serve the next
    harness.comfy.hold("ImageBlur")
    running = harness.begin("blur")
    await harness.comfy.until_held("ImageBlur")
    harness.comfy.fault(Op.READ, How.ERROR, -1)
    await harness.comfy.restart()
    harness.comfy.release()
    for _ in range(3):
        await submitted_elsewhere(harness)
    await harness.comfy.until_idle()
    harness.comfy.faults.clear()
    error = await failure_of(running)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert "The server knows no earlier run either: it has restarted since" in error.message
