"""The audit log records the user and the result of a call, as the caller named them and without secrets.

All fail at befa727, whose events know neither these fields nor anything of a call's context but its request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2

POLICY = (
    OPEN_POLICY
    + """impersonate: [local]
rules:
  - {id: asks, effect: REQUIRE_APPROVAL, tools: [core/util.hash.sha256Text]}
  - {id: never, effect: DENY, tools: [core/fs.listDir]}
"""
)
NOW = "core/util.time.now"
READ = "core/fs.readText"
WRITE = "core/fs.writeText"
SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
WHOM: dict[str, Any] = {
    "user_id": "alice",
    "agent_id": "scout",
    "task_id": "task-1",
    "session_id": "talk-1",
    "labels": {"team": "blue", "cost-center": "42"},
}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=POLICY) as running:
        yield running


async def recorded(hub: RunningHub, **where: Any) -> list[event_pb2.Event]:
    request = pb.ListEventsRequest(filter=event_pb2.EventFilter(**where), page_size=1_000)
    return list((await hub.audit.ListEvents(request)).events)


def types_of(events: list[event_pb2.Event]) -> list[str]:
    return [event_pb2.EventType.Name(event.type).removeprefix("EVENT_TYPE_") for event in events]


def whom(event: event_pb2.Event) -> dict[str, Any]:
    named = {name: getattr(event, name) for name in ("user_id", "agent_id", "task_id", "session_id")}
    return {**named, "labels": dict(event.labels)}


def rows_of(folder: Path) -> str:
    """All that stands in the files of the log."""
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in folder.rglob("audit.db*"))


async def test_an_event_of_a_read_names_its_user(hub: RunningHub) -> None:
    await hub.invoke(NOW, request_id="r", **WHOM)
    events = await recorded(hub, request_id="r")
    assert types_of(events) == ["TOOL_RESULT"]
    assert [whom(event) for event in events] == [WHOM]


async def test_a_refusal_by_policy_names_the_user(hub: RunningHub) -> None:
    await hub.invoke("core/fs.listDir", {"path": "."}, request_id="r", **WHOM)
    events = await recorded(hub, request_id="r")
    assert types_of(events) == ["POLICY_DENIED"]
    assert [whom(event) for event in events] == [WHOM]
    assert {(event.result_digest, event.result_summary) for event in events} == {("", "")}


async def test_a_question_to_a_person_names_the_user(hub: RunningHub) -> None:
    await hub.invoke("core/util.hash.sha256Text", {"text": "x"}, request_id="r", **WHOM)
    events = await recorded(hub, request_id="r")
    assert "APPROVAL_ASKED" in types_of(events)
    assert [whom(event) for event in events] == [WHOM] * len(events)


async def test_every_event_of_a_job_names_its_user(hub: RunningHub) -> None:
    job = await hub.submit(NOW, request_id="r", **WHOM)
    await hub.watched(job.job_id)
    events = await recorded(hub, request_id="r")
    assert {"JOB_SUBMITTED", "JOB_STATE", "TOOL_RESULT"} <= set(types_of(events))
    assert [whom(event) for event in events] == [WHOM] * len(events)


@pytest.mark.parametrize("name", ["user_id", "agent_id", "task_id", "session_id"])
async def test_events_are_found_by_user(hub: RunningHub, name: str) -> None:
    await hub.invoke(NOW, request_id="other", labels={name: WHOM[name]})
    await hub.invoke(NOW, request_id="r", **WHOM)
    assert {event.request_id for event in await recorded(hub, **{name: WHOM[name]})} == {"r"}


async def test_a_call_without_a_user_is_recorded_for_nobody(hub: RunningHub) -> None:
    await hub.invoke(NOW, request_id="r")
    nobody = {**dict.fromkeys(WHOM, ""), "labels": {}}
    assert [whom(event) for event in await recorded(hub, request_id="r")] == [nobody]


async def test_digest_is_that_of_the_bytes_which_the_caller_got(hub: RunningHub) -> None:
    for number, (tool, args) in enumerate(
        [
            (NOW, {}),
            (WRITE, {"path": "long.txt", "text": "line\n" * 100_000}),
            (READ, {"path": "long.txt"}),  # cut to the limit
        ]
    ):
        result = await hub.invoke(tool, args, request_id="r", **WHOM)
        assert result.ok, result.error
        *asked, answered = await recorded(hub, call_id=result.call_id)
        assert answered.result_digest == hashlib.sha256(result.result_json).hexdigest(), number
        assert [(event.result_digest, event.result_summary) for event in asked] == [("", "")] * (tool == WRITE)


async def test_short_result_is_shown_whole_and_a_long_one_by_its_outline(hub: RunningHub) -> None:
    now = await hub.invoke(NOW)
    await hub.invoke(WRITE, {"path": "long.txt", "text": "secretly " * 1_000}, request_id="r")
    read = await hub.invoke(READ, {"path": "long.txt"}, request_id="r")
    (short,) = [e for e in await recorded(hub, call_id=now.call_id) if e.result_summary]
    (long,) = [e for e in await recorded(hub, call_id=read.call_id) if e.result_summary]
    assert short.result_summary.encode() == now.result_json
    assert json.loads(long.result_summary)["text"] == "(9000 characters)"
    assert "secretly" not in long.result_summary


async def test_secrets_in_labels_and_results_are_hidden_and_the_log_verifies(hub: RunningHub, tmp_path: Path) -> None:
    labels = {"password": "hunter2-canary", "note": f"key {SECRET}"}
    await hub.invoke(WRITE, {"path": "k", "text": SECRET}, request_id="r", labels=labels)
    result = await hub.invoke(READ, {"path": "k"}, request_id="r", labels=labels)
    assert SECRET in result.result_json.decode()
    events = await recorded(hub)
    shown = str(events) + rows_of(tmp_path)
    assert '"result_summary":' in shown
    assert SECRET not in shown
    assert "hunter2-canary" not in shown
    assert (await hub.audit.VerifyAudit(pb.VerifyAuditRequest())).ok
