"""Why a job is in its state, as the audit log records it."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from tests.unit.runtime.jobs.job_harness import (
    AGENT,
    JobHarness,
    Process,
    ScriptedRun,
    a_job,
    failed,
    in_state,
    safe,
    unsafe,
)
from tests.unit.runtime.jobs.test_decisions import APPROVED, REJECTED, an_approval
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.result import JobState, ToolResult


def job_events(process: Process) -> list[Event]:
    return [event for event in process.events if event.type is EventType.JOB_STATE]


def shows(event: Event, **expected: Any) -> bool:
    return {name: event.attributes.get(name) for name in expected} == expected


async def test_cancelling_records_who_asked_and_why(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    await process.cancel()
    (event,) = job_events(process)
    assert shows(event, state="CANCELLED", cause="CANCELLED", cancelled_by=AGENT.id, cancel_reason="enough")
    assert shows(event, **{"from": "QUEUED"})


async def test_the_end_of_a_running_job_names_who_asked_for_it(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    running = process.deliver()
    await harness.started()
    await process.cancel()
    await running
    asked, over = job_events(process)[-2:]
    assert shows(asked, state="CANCELLING", cancelled_by=AGENT.id)
    assert shows(over, state="CANCELLED", cancelled_by=AGENT.id, runner="runner-1")
    assert "a part of its effect" in over.attributes["message"]


async def test_a_takeover_names_the_former_and_the_new_process(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    harness.world.go["job-1"].set()
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead"))
    await process.steady()
    await process.deliver()
    taken, over = job_events(process)
    assert shows(taken, state="RUNNING", taken_over_from="runner-dead", runner="runner-1", runs="2")
    assert shows(over, state="SUCCEEDED", runner="runner-1", cause=None)


async def test_a_lost_job_names_the_process_that_died(harness: JobHarness, process: Process) -> None:
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead", begun=True))
    await process.steady()
    await process.deliver()
    (event,) = job_events(process)
    assert (event.outcome, event.attributes["state"]) == ("OUTCOME_UNKNOWN", "LOST")
    assert shows(event, cause="RUNNER_DIED", runner="runner-dead")


async def test_a_job_that_waited_too_long_states_its_time_and_that_it_never_ran(
    harness: JobHarness, process: Process
) -> None:
    await harness.kept(a_job())
    harness.clock.advance(3_601)
    await process.deliver()
    (event,) = job_events(process)
    assert shows(event, state="TIMED_OUT", timeout_s="3600", cause="TIMEOUT", **{"from": "QUEUED"})


async def test_a_job_that_a_leaving_hub_hands_over_is_marked(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    await harness.kept(a_job())
    running = process.deliver()
    await harness.started()
    running.cancel()
    await asyncio.wait({running})
    assert shows(job_events(process)[-1], state="QUEUED", cause="HUB_STOPPED", runner="runner-1")


async def test_a_job_that_was_turned_away_names_the_limit(harness: JobHarness, process: Process) -> None:
    async def turned_away(run: ScriptedRun) -> ToolResult:
        return failed(run.call, ErrorKind.RATE_LIMITED, attempts=0)

    harness.world.script = turned_away
    await harness.kept(a_job())
    await process.deliver()
    assert shows(job_events(process)[-1], state="QUEUED", cause="RATE_LIMITED")


async def test_a_decision_names_its_approver(harness: JobHarness, process: Process) -> None:
    for job_id, decided in (("job-1", APPROVED), ("job-2", REJECTED)):
        waiting = in_state(a_job(job_id), JobState.AWAITING_APPROVAL, approval_id="apr-1")
        await harness.kept(*waiting)
        approval = an_approval(decided)
        await process.decisions.decide(replace(approval, binding=replace(approval.binding, job_id=job_id)))
    yes, no = job_events(process)
    assert shows(yes, state="QUEUED", cause="APPROVED", decided_by="ann", approval_id="apr-1")
    assert shows(no, state="FAILED", cause="REJECTED", decided_by="ann", approval_id="apr-1")


async def test_text_of_others_is_cut(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    await process.jobs.cancel(AGENT, "job-1", "x" * 100_000)
    recorded = job_events(process)[-1].attributes["cancel_reason"]
    assert recorded.endswith(" more characters]")
    assert 450 < len(recorded) <= 500


async def test_end_that_succeeded_has_no_cause(harness: JobHarness, process: Process) -> None:
    harness.world.script = unsafe
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    await process.deliver()
    assert "cause" not in job_events(process)[-1].attributes
