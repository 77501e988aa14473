"""One line an event: arguments of a call, and the outcome of a job or an approval with its reason."""

from __future__ import annotations

from toolhub.v1 import event_pb2
from toolhub_service.cli.audit.commands import _line

FACTS = {
    "job_id": "job_1",
    "from": "RUNNING",
    "state": "LOST",
    "cause": "RUNNER_DIED",
    "runner": "runner_a",
    "message": "It died.\x1b[2J",
}


def test_a_job_is_shown_with_its_cause() -> None:
    event = event_pb2.Event(type=event_pb2.EVENT_TYPE_JOB_STATE, principal="ann", tool="x/y", attributes=FACTS)
    line = _line(event)
    assert "job_1 RUNNING → LOST cause=RUNNER_DIED message=It died." in line
    assert "runner=runner_a" in line
    assert "\x1b" not in line


def test_a_call_is_shown_with_its_arguments() -> None:
    event = event_pb2.Event(
        type=event_pb2.EVENT_TYPE_TOOL_CALLED, tool="x/y", args_summary='{"a": 1}', attributes={"attempts": "1"}
    )
    assert _line(event).endswith('x/y  {"a": 1}')


def test_a_rule_is_two_spaces_from_the_tool_and_one_from_an_outcome() -> None:
    called = event_pb2.Event(type=event_pb2.EVENT_TYPE_TOOL_CALLED, tool="x/y", rule_id="r")
    assert _line(called).endswith("x/y  [r]")
    done = event_pb2.Event(type=event_pb2.EVENT_TYPE_TOOL_RESULT, tool="x/y", rule_id="r", outcome="ok")
    assert _line(done).endswith("x/y  \x1b[32mok\x1b[0m [r]")
