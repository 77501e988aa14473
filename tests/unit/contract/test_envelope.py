"""The envelope rules at their edges: what the hub would take and what it would refuse before anything is judged."""

from __future__ import annotations

from pathlib import Path

import protovalidate
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    call_pb2,
    event_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_pb2,
    tool_service_pb2,
)
from toolhub_service.guards.foreign_text import has_controls

VALIDATOR = protovalidate.Validator()
MIB = 1024 * 1024


def broken_rules(message: Message) -> set[str]:
    return {violation.proto.rule_id for violation in VALIDATOR.collect_violations(message)}


def call(**fields: object) -> call_pb2.ToolIntent:
    return call_pb2.ToolIntent(**{"tool": "core/fs.readText", **fields})  # type: ignore[arg-type]


def context(**fields: object) -> call_pb2.ExecContext:
    return call_pb2.ExecContext(**fields)  # type: ignore[arg-type]


def spec(**fields: object) -> tool_pb2.ToolSpec:
    whole = {"name": "demo/a.b", "version": "1.0.0", "kind": tool_pb2.TOOL_KIND_CORE, **fields}
    return tool_pb2.ToolSpec(**whole)  # type: ignore[arg-type]


ACCEPTED: list[Message] = [
    tool_service_pb2.InvokeRequest(intent=call()),
    call(tool="x"),
    call(tool="a name a model made up, 256 long".ljust(256, "!")),
    call(args_json=b"x" * (4 * MIB)),
    call(purpose="é" * 2048),
    call(idempotency_key="k" * 128),
    context(request_id="r-1", task_id="a/b", session_id="s:1", agent_id="agent@host", user_id="u+1"),
    context(labels={"team/name": "x" * 256}),
    context(permissions=["read:fs"] * 64),
    call_pb2.CallBudget(timeout=Duration(nanos=1), max_retries=0, max_tool_calls=1),
    call_pb2.CallBudget(timeout=Duration(seconds=86_400), max_retries=10, max_tool_calls=1_000_000),
    tool_service_pb2.InvokeRequest(intent=call(), plan_digest="0" * 64, approval_id="ap_1"),
    tool_service_pb2.SessionCall(intent=call(), call_id="1"),
    tool_service_pb2.SearchToolsRequest(query="", page_size=0),
    tool_service_pb2.ExportToolsRequest(format=tool_service_pb2.EXPORT_FORMAT_MCP),
    job_service_pb2.WatchJobRequest(job_id="job-1", after_sequence=0),
    approval_service_pb2.DecideApprovalRequest(approval_id="a", decision=approval_pb2.DECISION_REJECT),
    artifact_service_pb2.WriteArtifactRequest(chunk=b"x" * MIB),
    artifact_service_pb2.ArtifactHeader(name="report.pdf", sha256="a" * 64),
    registry_service_pb2.RegisterToolRequest(tool=spec(capabilities=["read:fs", "network"]), upsert=True),
    registry_service_pb2.RegisterToolsRequest(tools=[spec()]),
    registry_service_pb2.GetSnapshotRequest(),
    audit_service_pb2.ListEventsRequest(filter=event_pb2.EventFilter(types=[event_pb2.EVENT_TYPE_RETRY])),
    spec(version="1.0.0-rc.1+build.5", input_schema_json=b"x" * (256 * 1024)),
]

REFUSED: list[tuple[Message, str]] = [
    (tool_service_pb2.InvokeRequest(), "required"),
    (call(tool=""), "string.min_len"),
    (call(tool="x" * 257), "string.max_len"),
    (call(tool="a\nb"), "toolhub.line"),
    (context(labels={"team": "\u202e"}), "toolhub.line"),
    (context(permissions=["a\x1b"]), "toolhub.line"),
    (artifact_service_pb2.ArtifactHeader(name="a\x9b"), "toolhub.line"),
    (spec(tags=["a\u2028b"]), "toolhub.line"),
    (call(args_json=b"x" * (4 * MIB + 1)), "bytes.max_len"),
    (call(purpose="é" * 2048 + "x"), "string.max_bytes"),
    (call(idempotency_key="k" * 129), "toolhub.id"),
    (call(idempotency_key="two words"), "toolhub.id"),
    (context(request_id="../up"), "toolhub.id"),
    (context(agent_id="line\nbreak"), "toolhub.id"),
    (context(user_id="null\0byte"), "toolhub.id"),
    (context(task_id="тест"), "toolhub.id"),
    (context(labels={"": "x"}), "string.pattern"),
    (context(labels={str(n): "" for n in range(33)}), "map.max_pairs"),
    (context(permissions=["read:fs"] * 65), "repeated.max_items"),
    (call_pb2.CallBudget(timeout=Duration()), "duration.gt_lte"),
    (call_pb2.CallBudget(timeout=Duration(seconds=86_400, nanos=1)), "duration.gt_lte"),
    (call_pb2.CallBudget(max_retries=-1), "int32.gte_lte"),
    (call_pb2.CallBudget(max_retries=11), "int32.gte_lte"),
    (call_pb2.CallBudget(max_tool_calls=0), "int32.gte_lte"),
    (tool_service_pb2.InvokeRequest(intent=call(), plan_digest="not a token"), "string.pattern"),
    (tool_service_pb2.InvokeRequest(intent=call(), mode=99), "enum.defined_only"),  # type: ignore[arg-type]
    (tool_service_pb2.SessionCall(intent=call()), "toolhub.id"),
    (tool_service_pb2.InvokeSessionRequest(cancel_call_ids=["x"] * 257), "repeated.max_items"),
    (tool_service_pb2.SearchToolsRequest(page_size=-1), "int32.gte"),
    (tool_service_pb2.SearchToolsRequest(query="x" * 4097), "string.max_bytes"),
    (tool_service_pb2.ListToolsRequest(page_token="x" * 1025), "string.max_len"),
    (tool_service_pb2.ExportToolsRequest(), "enum.not_in"),
    (job_service_pb2.GetJobRequest(), "toolhub.id"),
    (job_service_pb2.WatchJobRequest(job_id="j", after_sequence=-1), "int64.gte"),
    (approval_service_pb2.DecideApprovalRequest(approval_id="a"), "enum.not_in"),
    (artifact_service_pb2.WriteArtifactRequest(), "required"),
    (artifact_service_pb2.WriteArtifactRequest(chunk=b"x" * (MIB + 1)), "bytes.max_len"),
    (artifact_service_pb2.ArtifactHeader(name="a/b"), "string.pattern"),
    (artifact_service_pb2.ArtifactHeader(name="a\\b"), "string.pattern"),
    (artifact_service_pb2.ArtifactHeader(sha256="A" * 64), "string.pattern"),
    (registry_service_pb2.RegisterToolRequest(), "required"),
    (registry_service_pb2.RegisterToolsRequest(), "repeated.min_items"),
    (registry_service_pb2.DecidePinRequest(source="s", tool="t", digest=""), "string.pattern"),
    (audit_service_pb2.ListEventsRequest(filter=event_pb2.EventFilter(types=[0])), "enum.not_in"),  # type: ignore[list-item]
    (event_pb2.EventFilter(outcome="a\nb"), "toolhub.line"),
    (event_pb2.EventFilter(outcome="a" * 65), "string.max_len"),
    (event_pb2.EventFilter(rule_id="a\x1b"), "toolhub.line"),
    (event_pb2.EventFilter(rule_id="a" * 129), "string.max_len"),
    (event_pb2.EventFilter(labels={"team": "\u202e"}), "toolhub.line"),
    (event_pb2.EventFilter(labels={"-": "a"}), "string.pattern"),
    (event_pb2.EventFilter(error_kinds=[0]), "enum.not_in"),  # type: ignore[list-item]
    (spec(name="../../etc"), "toolhub.id"),
    (spec(version="v1"), "string.pattern"),
    (spec(kind=tool_pb2.TOOL_KIND_UNSPECIFIED), "enum.not_in"),
    (spec(capabilities=["Read:FS"]), "string.pattern"),
    (spec(capabilities=["network", "network"]), "repeated.unique"),
    (spec(input_schema_json=b"x" * (256 * 1024 + 1)), "bytes.max_len"),
]


@pytest.mark.parametrize("message", ACCEPTED, ids=lambda message: type(message).__name__)
def test_a_message_within_the_rules_is_accepted(message: Message) -> None:
    assert broken_rules(message) == set()


@pytest.mark.parametrize(
    ("message", "rule"), REFUSED, ids=[f"{type(message).__name__}-{rule}" for message, rule in REFUSED]
)
def test_a_message_beyond_a_rule_is_refused_by_that_rule(message: Message, rule: str) -> None:
    assert rule in broken_rules(message)


def test_ids_are_held_to_one_rule_and_no_field_spells_it_out() -> None:
    contract = Path(__file__).parents[3] / "proto" / "toolhub" / "v1"
    spelt = {path.name for path in contract.glob("*.proto") if "._:@/+-]{0,127}" in path.read_text()}
    assert spelt == {"rules.proto"}


def test_the_contract_refuses_in_a_line_what_shown_text_never_has() -> None:
    """The rule of the contract, in RE2's words, and that of `guards/foreign_text.py` are the same set."""
    differing = [
        code
        for code in (*range(0x3000), *range(0xE0000, 0xE0100), 0x1F600)
        if bool(broken_rules(call(tool=f"a{chr(code)}"))) != has_controls(chr(code))
    ]
    assert differing == []
