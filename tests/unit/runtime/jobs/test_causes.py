"""Why a job is where it is, as the audit log tells it."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from tests.unit.runtime.jobs.stage import AGENT, Process, Stage, Stagehand, a_job, failed, in_state, safe, unsafe
from tests.unit.runtime.jobs.test_decisions import APPROVED, REJECTED, an_approval
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.result import JobState, ToolResult


def told(process: Process) -> list[Event]:
    return [event for event in process.events if event.type is EventType.JOB_STATE]


def shows(event: Event, **expected: Any) -> bool:
    return {name: event.attributes.get(name) for name in expected} == expected


async def test_cancelling_tells_who_asked_and_why(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    await process.cancel()
    (event,) = told(process)
    assert shows(event, state="CANCELLED", cause="CANCELLED", cancelled_by=AGENT.id, cancel_reason="enough")
    assert shows(event, **{"from": "QUEUED"})


async def test_end_of_a_running_job_tells_who_asked_for_it(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    running = process.deliver()
    await stage.started()
    await process.cancel()
    await running
    asked, over = told(process)[-2:]
    assert shows(asked, state="CANCELLING", cancelled_by=AGENT.id)
    assert shows(over, state="CANCELLED", cancelled_by=AGENT.id, runner="runner-1")
    assert "a part of its effect" in over.attributes["message"]


async def test_takeover_tells_from_which_process_to_which(stage: Stage, process: Process) -> None:
    stage.world.play = safe
    stage.world.go["job-1"].set()
    await stage.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead"))
    await process.steady()
    await process.deliver()
    taken, over = told(process)
    assert shows(taken, state="RUNNING", taken_over_from="runner-dead", runner="runner-1", runs="2")
    assert shows(over, state="SUCCEEDED", runner="runner-1", cause=None)


async def test_lost_job_tells_whose_death_it_was(stage: Stage, process: Process) -> None:
    await stage.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead", begun=True))
    await process.steady()
    await process.deliver()
    (event,) = told(process)
    assert (event.outcome, event.attributes["state"]) == ("OUTCOME_UNKNOWN", "LOST")
    assert shows(event, cause="RUNNER_DIED", runner="runner-dead")


async def test_job_that_waited_too_long_tells_its_time_and_that_it_never_ran(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    stage.clock.advance(3_601)
    await process.deliver()
    (event,) = told(process)
    assert shows(event, state="TIMED_OUT", timeout_s="3600", cause="TIMEOUT", **{"from": "QUEUED"})


async def test_job_that_a_leaving_hub_hands_over_says_so(stage: Stage, process: Process) -> None:
    stage.world.play = safe
    await stage.kept(a_job())
    running = process.deliver()
    await stage.started()
    running.cancel()
    await asyncio.wait({running})
    assert shows(told(process)[-1], state="QUEUED", cause="HUB_STOPPED", runner="runner-1")


async def test_job_that_was_turned_away_says_by_what(stage: Stage, process: Process) -> None:
    async def turned_away(hand: Stagehand) -> ToolResult:
        return failed(hand.call, ErrorKind.RATE_LIMITED, attempts=0)

    stage.world.play = turned_away
    await stage.kept(a_job())
    await process.deliver()
    assert shows(told(process)[-1], state="QUEUED", cause="RATE_LIMITED")


async def test_decision_tells_whose_it_was(stage: Stage, process: Process) -> None:
    for job_id, decided in (("job-1", APPROVED), ("job-2", REJECTED)):
        waiting = in_state(a_job(job_id), JobState.AWAITING_APPROVAL, approval_id="apr-1")
        await stage.kept(*waiting)
        approval = an_approval(decided)
        await process.decisions.decide(replace(approval, binding=replace(approval.binding, job_id=job_id)))
    yes, no = told(process)
    assert shows(yes, state="QUEUED", cause="APPROVED", decided_by="ann", approval_id="apr-1")
    assert shows(no, state="FAILED", cause="REJECTED", decided_by="ann", approval_id="apr-1")


async def test_words_of_others_are_cut(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    await process.desk.cancel(AGENT, "job-1", "x" * 100_000)
    assert len(told(process)[-1].attributes["cancel_reason"]) == 500


async def test_end_that_succeeded_has_no_cause(stage: Stage, process: Process) -> None:
    stage.world.play = unsafe
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    await process.deliver()
    assert "cause" not in told(process)[-1].attributes
