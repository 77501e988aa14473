"""An ended job leaves no question open: it is withdrawn at once or by the sweep."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.runtime.jobs.job_harness import AGENT, MARK, JobHarness, Process, ScriptedRun, a_job, failed, in_state
from tests.unit.runtime.jobs.test_decisions import APPROVED, EXPIRED, PENDING, REJECTED, USED, an_approval
from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.call import Call, ExecContext
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.result import JobState, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.runtime.approvals.binding import was_withdrawn
from toolhub_service.runtime.jobs.decisions import OrphanedApprovals


@pytest.fixture
async def waiting(harness: JobHarness, process: Process) -> Job:
    await process.approvals.create(an_approval())
    return await harness.kept(*in_state(a_job(), JobState.AWAITING_APPROVAL, approval_id="apr-1"))


async def approval(process: Process) -> Approval:
    found = await process.approvals.get("apr-1")
    assert found is not None
    return found


def lapses(process: Process) -> list[Event]:
    return [event for event in process.events if event.type is EventType.APPROVAL_EXPIRED]


async def test_cancelling_a_job_takes_its_question_back(harness: JobHarness, process: Process, waiting: Job) -> None:
    harness.clock.advance(60)
    await process.cancel()
    over = await approval(process)
    assert (over.state, over.decided_by, was_withdrawn(over)) == (EXPIRED, "", True)
    assert over.comment == "agent-a cancelled the job that requested it: enough"
    assert over.expires_at_unix_ms == harness.clock.unix_ms()
    (event,) = lapses(process)
    assert event.attributes["withdrawn_because"] == over.comment
    assert event.attributes["job_id"] == "job-1"


async def test_remote_work_that_waits_for_a_person_asks_nobody_once_it_is_to_stop(
    harness: JobHarness, process: Process
) -> None:
    await process.approvals.create(an_approval())
    await harness.kept(*in_state(a_job(), JobState.AWAITING_APPROVAL, approval_id="apr-1", remote=MARK))
    assert (await process.cancel()).state is JobState.CANCELLING
    assert (await approval(process)).state is EXPIRED


async def test_granted_approval_of_a_queued_job_ends_with_it(harness: JobHarness, process: Process) -> None:
    await process.approvals.create(an_approval(APPROVED, comment="go"))
    await harness.kept(a_job(approval_id="apr-1"))
    await process.cancel()
    over = await approval(process)
    assert (over.state, over.decided_by, over.comment) == (EXPIRED, "ann", "go"), "what a person said stays"
    assert not was_withdrawn(over)


@pytest.mark.parametrize("state", [REJECTED, EXPIRED, USED])
async def test_approval_that_has_ended_stays_as_it_is(
    harness: JobHarness, process: Process, state: ApprovalState
) -> None:
    await process.approvals.create(an_approval(state))
    await harness.kept(a_job(approval_id="apr-1"))
    await process.cancel()
    assert await approval(process) == an_approval(state)


async def test_approval_that_no_job_asked_for_stays_its_callers(harness: JobHarness, process: Process) -> None:
    own = an_approval(APPROVED)
    own = replace(own, binding=replace(own.binding, job_id=""))
    await process.approvals.create(own)
    await harness.kept(a_job(approval_id="apr-1"))
    await process.cancel()
    assert await approval(process) == own


async def test_question_of_a_run_that_is_to_stop_is_taken_back(harness: JobHarness, process: Process) -> None:
    async def asks(run: ScriptedRun) -> ToolResult:
        await run.process.approvals.create(an_approval())
        await run.process.cancel()
        run.process.runs.stopping("job-1").clear()
        return failed(run.call, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-1")

    harness.world.script = asks
    await harness.kept(a_job(remote=MARK))
    await process.deliver()
    assert (await harness.job()).state.is_final
    assert (await approval(process)).state is EXPIRED


async def test_job_that_succeeded_leaves_its_approval_alone(harness: JobHarness, process: Process) -> None:
    harness.world.go["job-1"].set()
    await process.approvals.create(an_approval(APPROVED))
    await harness.kept(a_job(approval_id="apr-1"))
    await process.deliver()
    assert (await harness.job()).state is JobState.SUCCEEDED
    assert (await approval(process)).state is APPROVED


async def test_question_that_outlived_its_job_is_found_by_the_sweep(harness: JobHarness, process: Process) -> None:
    await process.approvals.create(an_approval())
    over = move_job(a_job(), JobState.FAILED, 0, result=failed(a_job().call, ErrorKind.INTERNAL), approval_id="apr-1")
    await harness.kept(a_job(), over)
    sweep = OrphanedApprovals(process.approvals, process.ledger)
    assert await sweep.withdraw(harness.clock.unix_ms()) == 1
    assert (await approval(process)).comment == "The job that requested it has ended: it is FAILED."
    assert await sweep.withdraw(harness.clock.unix_ms()) == 0


async def test_sweep_leaves_what_is_waited_for(harness: JobHarness, process: Process, waiting: Job) -> None:
    for number, job_id in enumerate(("", "job-of-another-store")):
        binding = Binding(AGENT.id, "test/text.write", "d" * 64, str(number), "1", job_id)
        await process.approvals.create(replace(an_approval(), approval_id=f"apr-other-{number}", binding=binding))
    assert await OrphanedApprovals(process.approvals, process.ledger).withdraw(harness.clock.unix_ms()) == 0
    assert not lapses(process)


async def test_sweep_comes_round_to_every_question(
    harness: JobHarness, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_service.runtime.jobs.decisions._APPROVALS_A_PAGE", 2)
    over = move_job(a_job(), JobState.FAILED, 0, result=failed(a_job().call, ErrorKind.INTERNAL))
    await harness.kept(a_job(), over)
    for number in range(5):
        binding = Binding(AGENT.id, "test/text.write", "d" * 64, str(number), "1", "job-1" if number == 0 else "")
        await process.approvals.create(
            replace(an_approval(requested_at_unix_ms=number), approval_id=f"apr-{number}", binding=binding)
        )
    sweep = OrphanedApprovals(process.approvals, process.ledger)
    assert [await sweep.withdraw(0) for _ in range(4)] == [0, 0, 1, 0]


async def test_store_that_is_away_costs_no_job_its_end(
    harness: JobHarness, process: Process, waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise ToolFailure(ToolError(ErrorKind.TOOL_UNAVAILABLE, "away"))

    with monkeypatch.context() as gone:
        gone.setattr(process.approvals, "get", away)
        assert (await process.cancel()).state is JobState.CANCELLED
    assert len(process.observer.troubles) == 1
    assert (await approval(process)).state is PENDING
    assert await OrphanedApprovals(process.approvals, process.ledger).withdraw(harness.clock.unix_ms()) == 1


def _asked(approval_id: str, args_digest: str = "a" * 64) -> ToolError:
    details = {"approval_id": approval_id, "args_digest": args_digest}
    return ToolError(ErrorKind.APPROVAL_REQUIRED, "a person", details=details)


SPEC = ToolSpec(
    name="test/text.write",
    version="1.0.0",
    kind=ToolKind.CORE,
    description="Writes.",
    input_schema={},
    output_schema={},
    digest="d" * 64,
)
CALL = Call("call-1", SPEC.name, {"text": "hi"}, AGENT, ExecContext("r-1"), idempotency_key="k", job_id="job-1")


async def test_submission_that_comes_again_for_a_job_that_is_over_asks_nobody(
    harness: JobHarness, process: Process, waiting: Job
) -> None:
    """Its key still stands for that job, so an answer would have no effect."""
    first = await process.acceptance.keep_waiting(CALL, SPEC, _asked("apr-1"))
    assert first.job_id == waiting.job_id
    assert (await approval(process)).state is PENDING, "it waits for that"
    await process.cancel()
    again = replace(an_approval(), approval_id="apr-2")
    assert await process.approvals.create(again) is None
    assert (await process.acceptance.keep_waiting(CALL, SPEC, _asked("apr-2"))).state is JobState.CANCELLED
    asked = await process.approvals.get("apr-2")
    assert asked is not None
    assert asked.state is EXPIRED


async def test_submission_whose_key_stands_for_other_arguments_asks_nobody(
    harness: JobHarness, process: Process, waiting: Job
) -> None:
    other = replace(an_approval(), approval_id="apr-2", binding=replace(an_approval().binding, args_digest="b" * 64))
    assert await process.approvals.create(other) is None
    with pytest.raises(ToolFailure) as refused:
        await process.acceptance.keep_waiting(CALL, SPEC, _asked("apr-2", "b" * 64))
    assert refused.value.error.kind is ErrorKind.IDEMPOTENCY_CONFLICT
    asked = await process.approvals.get("apr-2")
    assert asked is not None
    assert asked.state is EXPIRED
    assert (await approval(process)).state is PENDING
