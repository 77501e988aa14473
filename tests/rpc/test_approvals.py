"""Approvals through a whole hub: asked for by one principal, decided by another, used up by exactly one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, channel_to, request, running_hub
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import approval_pb2, error_pb2, job_service_pb2, job_state_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.event import EventType

API_KEYS = {"auth": {"modes": ["api-key"]}}
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [judge], roles: [approver]}
  - {principals: [boss], roles: [agent, approver]}
rules:
  - {id: writes-need-a-yes, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Files are shared.}
"""
WRITE = "core/fs.writeText"
ARGS = {"path": "a.txt", "text": "hello"}
APPROVE, REJECT = approval_pb2.DECISION_APPROVE, approval_pb2.DECISION_REJECT
AWAITING = job_state_pb2.JOB_STATE_AWAITING_APPROVAL


class ApprovalsHarness:
    """A hub with three people: robot asks, judge decides, boss may do both."""

    def __init__(self, running: RunningHub, names: tuple[str, ...] = ("robot", "judge", "boss")) -> None:
        self.running = running
        file = Paths(running.hub.settings).key_file()
        self._keys = {name: (("authorization", f"Bearer {file.create(name)}"),) for name in names}
        reload_keys(running.hub, file)

    def by(self, name: str) -> tuple[tuple[str, str], ...]:
        return self._keys[name]

    @property
    def approvals(self) -> Any:
        return ApprovalServiceStub(self.running.channel)

    @property
    def jobs(self) -> Any:
        return JobServiceStub(self.running.channel)

    async def call(self, approval_id: str = "", args: Any = None, *, by: str = "robot", key: str = "") -> Any:
        asked = request(WRITE, args or ARGS, idempotency_key=key, request_id="work")
        asked.approval_id = approval_id
        return (await self.running.stub.Invoke(asked, metadata=self.by(by), timeout=60)).result

    async def ask(self, args: Any = None, *, by: str = "robot") -> str:
        result = await self.call(args=args, by=by)
        assert result.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        return str(result.error.details["approval_id"])

    def decide(
        self, approval_id: str, decision: approval_pb2.Decision.ValueType = APPROVE, *, by: str = "judge", **fields: Any
    ) -> Any:
        asked = pb.DecideApprovalRequest(approval_id=approval_id, decision=decision, **fields)
        return self.approvals.DecideApproval(asked, metadata=self.by(by), timeout=60)

    async def grant(self, args: Any = None) -> str:
        approval_id = await self.ask(args)
        await self.decide(approval_id)
        return approval_id

    async def submit(self, args: Any = None) -> Any:
        asked = request(WRITE, args or ARGS, request_id="work")
        submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context)
        return (await self.jobs.SubmitJob(submitted, metadata=self.by("robot"), timeout=60)).job

    async def ended(self, job_id: str) -> Any:
        """The last status of the job, once it has one."""
        watch = self.jobs.WatchJob(
            job_service_pb2.WatchJobRequest(job_id=job_id), metadata=self.by("robot"), timeout=60
        )
        return [answer.status async for answer in watch][-1]

    @property
    def written(self) -> list[str]:
        folder = self.running.workspace("work", "robot")
        return sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []


@asynccontextmanager
async def approvals_harness(tmp_path: Path, **fields: Any) -> AsyncIterator[ApprovalsHarness]:
    async with running_hub(tmp_path, policy=POLICY, settings=API_KEYS, **fields) as running:
        yield ApprovalsHarness(running)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ApprovalsHarness]:
    async with approvals_harness(tmp_path) as opened:
        yield opened


@pytest.mark.promise("approval.single-use")
async def test_call_waits_for_a_person_and_then_runs_once(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    assert harness.written == []
    done = await harness.call(approval_id)
    assert done.ok
    assert harness.written == ["a.txt"]
    again = await harness.call(approval_id)
    assert again.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
    assert "already been used" in again.error.message


@pytest.mark.promise("errors.typed-refusals")
async def test_refusal_names_its_approval_and_rule_in_messages_of_their_own(harness: ApprovalsHarness) -> None:
    asked = (await harness.call()).error
    assert asked.approval.approval_id == asked.details["approval_id"]
    assert asked.approval.state == approval_pb2.APPROVAL_STATE_PENDING
    assert asked.approval.expires_at.ToJsonString() == asked.details["expires_at"]
    assert asked.rule.rule_id == "writes-need-a-yes"
    await harness.decide(asked.approval.approval_id)
    granted = (await harness.call()).error.approval
    assert (granted.approval_id, granted.state) == (asked.approval.approval_id, approval_pb2.APPROVAL_STATE_APPROVED)
    other = {"path": "b.txt", "text": "hello"}
    await harness.decide(await harness.ask(other), REJECT, comment="Not now.")
    refused = (await harness.call(args=other)).error
    assert refused.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED, "a no is for one call; the next one asks anew"


@pytest.mark.promise("approval.four-events")
async def test_every_step_is_in_the_audit_log_and_the_log_verifies(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    done = await harness.call(approval_id)
    events = [chained.event for chained in await harness.running.events()]
    recorded = [(event.type, event.principal) for event in events if event.attributes.get("approval_id") == approval_id]
    assert recorded == [
        (EventType.APPROVAL_ASKED, "robot"),
        (EventType.APPROVAL_DECIDED, "judge"),
        (EventType.APPROVAL_USED, "robot"),
    ]
    own = [event.type for event in events if event.call_id == done.call_id]
    assert own == [EventType.APPROVAL_USED, EventType.TOOL_CALLED, EventType.TOOL_RESULT]
    assert (await harness.running.hub.audit.verify()).ok


@pytest.mark.promise("approval.single-use")
async def test_exactly_one_of_fifty_calls_at_once_with_one_approval_runs(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    results = await asyncio.gather(*(harness.call(approval_id) for _ in range(50)))
    assert sum(result.ok for result in results) == 1
    calls = await harness.running.events(types=frozenset({EventType.APPROVAL_USED}))
    assert len(calls) == 1


async def test_repeated_call_under_its_key_is_answered_from_store_and_asks_nobody(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    first, again = await harness.call(approval_id, key="k"), await harness.call(approval_id, key="k")
    assert (first.ok, again.ok, again.replayed) == (True, True, True)
    listed = await harness.approvals.ListApprovals(pb.ListApprovalsRequest(), metadata=harness.by("judge"))
    assert listed.total_size == 1


@pytest.mark.promise("approval.not-by-the-requester")
async def test_nobody_decides_for_themselves_nor_without_the_role(harness: ApprovalsHarness) -> None:
    own, robots = await harness.ask(by="boss"), await harness.ask()
    for approval_id, by, reason in ((own, "boss", "OWN_REQUEST"), (robots, "robot", "ROLE_MISSING")):
        failure = await failed(harness.decide(approval_id, by=by))
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason)
    assert (await harness.decide(own)).approval.state == approval_pb2.APPROVAL_STATE_APPROVED
    assert (await harness.decide(robots, by="boss")).approval.decided_by == "boss"


async def test_the_asker_looks_up_the_decision_on_its_question(harness: ApprovalsHarness) -> None:
    approval_id = await harness.ask()
    await harness.decide(approval_id, REJECT, comment="not today")
    asked = pb.GetApprovalRequest(approval_id=approval_id)
    seen = (await harness.approvals.GetApproval(asked, metadata=harness.by("robot"))).approval
    assert (seen.state, seen.comment) == (approval_pb2.APPROVAL_STATE_REJECTED, "not today")
    refused = await harness.call(approval_id)
    assert refused.error.kind == error_pb2.ERROR_KIND_APPROVAL_REJECTED
    assert "not today" in refused.error.message
    assert harness.written == []


@pytest.mark.promise("approval.exact-call")
async def test_other_arguments_and_another_policy_need_another_yes(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    other = await harness.call(approval_id, {"path": "b.txt", "text": "hello"})
    assert other.error.details["differs"] == ["arguments"]
    hub = harness.running.hub
    Paths(hub.settings).policy.write_text(POLICY.replace("Files are shared.", "Files are shared still."))
    assert hub.policy_file.load().applied
    changed = await harness.call(approval_id)
    assert changed.error.details["differs"] == ["policy revision"]
    assert harness.written == []


async def test_question_outlives_the_hub(tmp_path: Path) -> None:
    async with approvals_harness(tmp_path) as harness:
        approval_id = await harness.ask()
    async with running_hub(tmp_path, policy=POLICY, settings=API_KEYS) as running:
        again = ApprovalsHarness(running)
        await again.decide(approval_id)
        assert (await again.call(approval_id)).ok
        assert again.written == ["a.txt"]


@pytest.mark.promise("approval.job-goes-on")
async def test_job_waits_for_a_person_and_goes_on_by_itself(harness: ApprovalsHarness) -> None:
    job = await harness.submit()
    assert job.status.state == AWAITING
    approval = (
        await harness.approvals.GetApproval(
            pb.GetApprovalRequest(approval_id=job.approval_id), metadata=harness.by("judge")
        )
    ).approval
    assert approval.job_id == job.job_id
    ending = asyncio.create_task(harness.ended(job.job_id))
    await harness.decide(job.approval_id)
    assert (await ending).state == job_state_pb2.JOB_STATE_SUCCEEDED
    assert harness.written == ["a.txt"]


@pytest.mark.promise("approval.job-goes-on")
async def test_a_rejected_job_fails_with_the_reason(harness: ApprovalsHarness) -> None:
    job = await harness.submit()
    await harness.decide(job.approval_id, REJECT, comment="not this folder")
    last = await harness.ended(job.job_id)
    assert (last.state, last.error.kind) == (
        job_state_pb2.JOB_STATE_FAILED,
        error_pb2.ERROR_KIND_APPROVAL_REJECTED,
    )
    assert "not this folder" in last.error.message
    assert harness.written == []


async def test_job_may_be_submitted_with_an_approval_that_was_granted(harness: ApprovalsHarness) -> None:
    approval_id = await harness.grant()
    asked = request(WRITE, ARGS, request_id="work")
    submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context, approval_id=approval_id)
    job = (await harness.jobs.SubmitJob(submitted, metadata=harness.by("robot"), timeout=60)).job
    assert (await harness.ended(job.job_id)).state == job_state_pb2.JOB_STATE_SUCCEEDED
    assert (await harness.call(approval_id)).error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED


@pytest.mark.promise("jobs.handed-over")
async def test_a_leaving_hub_ends_watches_with_a_retryable_status(tmp_path: Path) -> None:
    async with AsyncExitStack() as client:
        async with approvals_harness(tmp_path) as harness:
            channel = await client.enter_async_context(channel_to(harness.running.address))
            metadata, approval_id = harness.by("judge"), await harness.ask()
            stub: Any = ApprovalServiceStub(channel)
            watch = stub.WatchApprovals(pb.WatchApprovalsRequest(), metadata=metadata, timeout=60)
            answers = aiter(watch)
            assert (await anext(answers)).approval.approval_id == approval_id
            ending = asyncio.create_task(failed_stream(answers))
        failure = await ending
    assert (failure.code, failure.reason, failure.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.5)


@pytest.mark.promise("secrets.nowhere")
async def test_a_secret_of_an_argument_is_never_shown(harness: ApprovalsHarness) -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    approval_id = await harness.ask({"path": "a.txt", "text": f"token: {secret}"})
    asked = pb.GetApprovalRequest(approval_id=approval_id)
    seen = await harness.approvals.GetApproval(asked, metadata=harness.by("judge"))
    assert secret.encode() not in seen.SerializeToString()
    assert b"token: [40 characters: letters, digits and _]" in seen.approval.args_summary_json
    assert secret not in repr(await harness.running.events())
    stored = b"".join(path.read_bytes() for path in Paths(harness.running.hub.settings).data_dir.glob("hub.db*"))
    assert secret.encode() not in stored


@pytest.mark.promise("approval.watch-resumed")
async def test_a_reopened_watch_is_notified_of_what_was_decided_meanwhile(harness: ApprovalsHarness) -> None:
    def watched(token: str = "") -> Any:
        asked = pb.WatchApprovalsRequest(resume_token=token)
        return harness.approvals.WatchApprovals(asked, metadata=harness.by("judge"), timeout=60)

    first, second = await harness.ask({"path": "a.txt", "text": "a"}), await harness.ask({"path": "b.txt", "text": "b"})
    watch = watched()
    answers = [await watch.read() for _ in range(2)]
    watch.cancel()
    assert {answer.approval.approval_id for answer in answers} == {first, second}
    assert [bool(answer.resume_token) for answer in answers] == [False, True], "a half-read list is read anew"
    await harness.decide(first, REJECT)
    third = await harness.ask({"path": "c.txt", "text": "c"})
    resumed = watched(answers[-1].resume_token)
    states: dict[str, int] = {}
    while {first, third} - states.keys():
        answer = await resumed.read()
        states[answer.approval.approval_id] = answer.approval.state
    resumed.cancel()
    assert states[first] == approval_pb2.APPROVAL_STATE_REJECTED
    assert states[third] == approval_pb2.APPROVAL_STATE_PENDING
