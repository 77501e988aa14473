"""The contract's comments on plans, events, filters and pages, held against a hub over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hub import RunningHub, running_hub
from tests.rpc.contract_text import assert_comment
from toolhub.v1 import (
    approval_service_pb2,
    audit_service_pb2,
    event_pb2,
    job_service_pb2,
    job_state_pb2,
    registry_service_pb2,
    step_pb2,
    tool_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.egress.client import IDEMPOTENCY_KEY

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs, network, danger:destructive]}]
rules:
- {id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText]}
- {id: never, effect: DENY, tools: [core/fs.copy]}
roles: [{principals: [local], roles: [agent, operator, auditor, approver]}]
"""
NOW, WRITE, DELETE = "core/util.time.now", "core/fs.writeText", "core/fs.deletePath"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=POLICY) as running:
        yield running


async def events(hub: RunningHub, *types: int) -> list[event_pb2.Event]:
    asked = audit_service_pb2.ListEventsRequest(filter=event_pb2.EventFilter(types=types))  # type: ignore[arg-type]
    return list((await hub.audit.ListEvents(asked)).events)


async def test_a_plan_shows_its_arguments_whether_they_fit_or_not(hub: RunningHub) -> None:
    assert_comment("plan", "The arguments, completed where they fit the schema and as they came where they do not,")
    unfit = await hub.plan("core/util.text.truncate", {"text": 7})
    assert (unfit.args_json, list(unfit.defaults_applied)) == (b'{"text":7}', [])
    fit = await hub.plan(NOW)
    assert fit.args_json == b'{"timezone":"UTC"}'
    assert list(fit.defaults_applied) == ["/timezone"]


async def test_a_plan_has_a_digest_and_its_end_unless_something_but_a_person_is_missing(hub: RunningHub) -> None:
    assert_comment("plan", "Empty when a step fails, unless all that is missing is a person's approval.")
    assert_comment("plan", "Until when the digest is accepted. Unset when there is none.")
    plans = {
        "fits": await hub.plan(NOW),
        "asks": await hub.plan(WRITE, {"path": "a", "text": "b"}),
        "denied": await hub.plan("core/fs.copy", {"source": "a", "destination": "b"}),
        "unfit": await hub.plan(NOW, {"timezone": 7}),
        "unknown": await hub.plan("no/such.tool"),
    }
    found = {name: (bool(plan.plan_digest), plan.HasField("expires_at")) for name, plan in plans.items()}
    assert found == {name: (name in {"fits", "asks"},) * 2 for name in plans}


async def test_a_plan_stops_at_the_failing_step_and_states_the_remedy(hub: RunningHub) -> None:
    assert_comment("plan", "One verdict a step, in order, up to and including the first that fails.")
    assert_comment("plan", "The rule of policy, or its built-in check, that decided.")
    assert_comment("plan", "What would make it pass, or what to do to commit it, in one sentence.")
    assert_comment("plan", "the first five, and EXECUTE only when it is known that it would fail.")
    denied = await hub.plan("core/fs.copy", {"source": "a", "destination": "b"})
    assert [(step.step, step.ok) for step in denied.steps] == [(1, True), (2, True), (3, True), (4, False)]
    assert (denied.steps[-1].rule_id, bool(denied.steps[-1].remedy)) == ("never", True)
    missing = await hub.plan(DELETE, {"path": "a", "confirm": True})
    assert (missing.steps[-1].step, missing.steps[-1].ok) == (step_pb2.STEP_NAME_EXECUTE, False)
    policy = missing.steps[3]
    assert (policy.ok, policy.rule_id, bool(policy.remedy)) == (True, "destructive_requires_plan", True)


async def test_events_of_a_call_name_its_request_and_how_long_what_ended_took(hub: RunningHub) -> None:
    assert_comment("event", "The user request; of a call that named none the one that the hub minted.")
    assert_comment("event", "How long it took. Zero where nothing ended.")
    assert_comment("event", "A call that only reads has none: its TOOL_RESULT says it all.")
    minted = (await hub.invoke(NOW)).request_id
    await hub.invoke(DELETE, {"path": "a", "confirm": True}, request_id="r-2")
    called = await events(hub, event_pb2.EVENT_TYPE_TOOL_CALLED)
    ended = await events(hub, event_pb2.EVENT_TYPE_TOOL_RESULT)
    assert [(each.request_id, each.duration.ToNanoseconds()) for each in called] == [("r-2", 0)]
    assert {each.request_id for each in ended} >= {minted}
    assert all(each.duration.ToNanoseconds() > 0 for each in ended)


async def test_a_job_and_an_approval_name_the_request_that_was_minted(hub: RunningHub) -> None:
    for file in ("job", "approval"):
        assert_comment(file, "The call's: its context's, or where that named none the one that the hub minted.")
    job = await hub.submit(WRITE, {"path": "a", "text": "b"})
    approvals = ApprovalServiceStub(hub.channel)
    (approval,) = (await approvals.ListApprovals(approval_service_pb2.ListApprovalsRequest())).approvals
    assert job.request_id == approval.request_id == job.call_id


async def test_an_event_of_a_job_has_its_state_and_outcome_among_its_attributes(hub: RunningHub) -> None:
    assert_comment("event", "`state` among the attributes tells which, `outcome` how it ended.")
    job = await hub.submit(NOW)
    await hub.watched(job.job_id)
    states = [(each.attributes["state"], each.outcome) for each in await events(hub, event_pb2.EVENT_TYPE_JOB_STATE)]
    assert (states[0], states[-1]) == (("RUNNING", ""), ("SUCCEEDED", "ok"))


async def test_a_read_of_the_audit_log_is_recorded_in_it(hub: RunningHub) -> None:
    assert_comment("audit_service", "that the log was read is recorded in the log itself (AUDIT_READ).")
    await events(hub)
    await hub.hub.audit.flush()
    assert event_pb2.EVENT_TYPE_AUDIT_READ in {each.type for each in await events(hub)}


async def test_an_unspecified_member_of_a_filter_means_every_one(hub: RunningHub) -> None:
    for file in ("job_state", "approval", "pin", "tool"):
        assert_comment(file, "in a filter, every ")
    await hub.watched((await hub.submit(NOW)).job_id)
    jobs = job_service_pb2.ListJobsRequest(states=[job_state_pb2.JOB_STATE_UNSPECIFIED, job_state_pb2.JOB_STATE_LOST])
    assert (await hub.jobs.ListJobs(jobs)).total_size == 1
    kinds = tool_pb2.ToolFilter(kinds=[tool_pb2.TOOL_KIND_UNSPECIFIED, tool_pb2.TOOL_KIND_N8N])
    states = tool_pb2.ToolFilter(states=[tool_pb2.TOOL_STATE_UNSPECIFIED])
    every = (await hub.stub.ListTools(pb.ListToolsRequest())).total_size
    for where in (kinds, states):
        assert (await hub.stub.ListTools(pb.ListToolsRequest(filter=where))).total_size >= every


async def test_the_basic_view_lacks_schemas_examples_and_guarded_arguments(hub: RunningHub) -> None:
    assert_comment("tool", "Everything but schemas, examples and guarded arguments.")
    assert_comment("tool", "`{}` means that results are not checked. Empty in BASIC view.")
    where = tool_pb2.ToolFilter(names=["core/fs.readText"])
    (basic,) = (await hub.stub.ListTools(pb.ListToolsRequest(filter=where, view=tool_pb2.TOOL_VIEW_BASIC))).tools
    (full,) = (await hub.stub.ListTools(pb.ListToolsRequest(filter=where, view=tool_pb2.TOOL_VIEW_FULL))).tools
    lacks = {"input_schema_json", "output_schema_json", "examples", "guarded"}
    assert {field.name for field, _ in full.ListFields()} - {field.name for field, _ in basic.ListFields()} == lacks


async def test_an_empty_list_names_no_source_where_there_is_none_for_the_caller(hub: RunningHub) -> None:
    assert_comment("tool_service", "An empty page that names no source means: there is none for you.")
    answer = await hub.stub.ListTools(pb.ListToolsRequest(filter=tool_pb2.ToolFilter(names=["core/fs.copy"])))
    assert (len(answer.tools), len(answer.sources), answer.denied_size) == (0, 0, 1)


async def test_a_hit_by_the_title_of_an_example_is_one_by_the_description(hub: RunningHub) -> None:
    assert_comment("tool_service", "`description` (titles of examples included)")
    tool = (await hub.stub.GetTool(pb.GetToolRequest(name="core/http.head"))).tool
    assert (tool.examples[0].title, "worth" in tool.description) == ("Is it worth fetching?", False)
    where = tool_pb2.ToolFilter(names=["core/http.head"])
    (hit,) = (await hub.stub.SearchTools(pb.SearchToolsRequest(query="worth", filter=where))).hits
    assert list(hit.matched_fields) == ["description"]


async def test_pages_hold_what_is_asked_a_hundred_unasked(hub: RunningHub) -> None:
    for file in ("tool_service", "job_service", "approval_service", "artifact_service", "audit_service"):
        assert_comment(file, "0 means 100; more than 1000 is taken as 1000.")
    for _ in range(101):
        await hub.invoke(NOW)
    assert len(await events(hub, event_pb2.EVENT_TYPE_TOOL_RESULT)) == 100
    every = audit_service_pb2.ListEventsRequest(page_size=5_000)
    assert len((await hub.audit.ListEvents(every)).events) > 100
    assert (await hub.stub.ListTools(pb.ListToolsRequest(page_size=2))).next_page_token
    snapshot = await hub.registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest(page_size=2))
    assert len(snapshot.tools) == 2


def test_the_header_that_carries_a_key_is_the_one_that_the_contract_names() -> None:
    assert_comment(
        "call", "Where policy says that a host honours the header `Idempotency-Key`, HTTP tools send it there,"
    )
    assert IDEMPOTENCY_KEY == "idempotency-key"


async def test_totals_count_by_the_words_of_the_enums(hub: RunningHub) -> None:
    assert_comment("registry_service", "By kind, such as `MCP`.")
    assert_comment("registry_service", "By state, such as `ACTIVE`.")
    totals = (await hub.registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest())).totals
    assert dict(totals.by_kind) == {"CORE": totals.tools}
    assert set(totals.by_state) == {"ACTIVE", "UNAVAILABLE"}, "some need what an operator configures"
    assert sum(totals.by_state.values()) == totals.tools
    assert dict(totals.by_source) == {"core": totals.tools}


async def test_a_watch_of_several_jobs_begins_with_those_named_and_with_what_is_not_over(hub: RunningHub) -> None:
    assert_comment("job_service", "First the current state of each that is named or is not final,")
    assert_comment("job_service", "Ends once every named job is final; else never.")
    over = await hub.submit(NOW)
    await hub.watched(over.job_id)
    waiting = await hub.submit(WRITE, {"path": "a", "text": "b"})
    named = hub.jobs.WatchJobs(job_service_pb2.WatchJobsRequest(job_ids=[over.job_id]), timeout=60)
    assert [answer.status.state async for answer in named] == [job_state_pb2.JOB_STATE_SUCCEEDED]
    every = hub.jobs.WatchJobs(job_service_pb2.WatchJobsRequest(), timeout=60)
    assert (await every.read()).status.job_id == waiting.job_id
    every.cancel()


async def test_the_steps_of_an_answer_are_those_before_it_is_recorded(hub: RunningHub) -> None:
    assert_comment("result", "Steps that were not reached are absent, and RECORD always is:")
    whole, refused = await hub.invoke(NOW), await hub.invoke(NOW, {"timezone": 7})
    assert [each.step for each in whole.durations] == list(range(1, step_pb2.STEP_NAME_RECORD))
    assert step_pb2.STEP_NAME_RECORD not in {each.step for each in refused.durations}


async def test_a_remedy_is_the_callers_or_an_operators(hub: RunningHub) -> None:
    assert_comment("error", "a caller with the role operator gets the lines to add to policy.yaml.")
    narrowed = await hub.invoke("core/fs.stat", {"path": "a"}, permissions=["write:fs"])
    assert "context.permissions" in narrowed.error.rule.remedy
    closed = await hub.invoke("core/http.fetchText", {"url": "http://example.com"})
    assert "policy.yaml" in closed.error.rule.remedy
