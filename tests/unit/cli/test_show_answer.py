"""Results, refusals and plans as people see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolhub.v1 import error_pb2, job_state_pb2, plan_pb2, result_pb2, step_pb2
from toolhub_service.cli.call import show_error, show_plan, show_result
from toolhub_service.cli.plans import remember_plan


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def result_of(value: object, **fields: Any) -> result_pb2.ToolResult:
    return result_pb2.ToolResult(ok=True, call_id="call_1", result_json=json.dumps(value).encode(), **fields)


def test_an_object_is_shown_as_pairs_and_long_parts_as_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of({"path": "a", "lines": 2, "text": "one\ntwo\n", "rows": ["x" * 60, "y" * 60]}))
    out = capsys.readouterr().out
    assert out.startswith("path   a\nlines  2\ntext:\none\ntwo\nrows:\n[\n")
    assert out.endswith("  call_1 · 0.0 ms\n")


def test_a_call_that_became_a_job_names_the_command_that_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = job_state_pb2.JobRef(job_id="job_1", state=job_state_pb2.JOB_STATE_QUEUED)
    show_result(result_pb2.ToolResult(ok=True, call_id="call_1", job=job))
    out = capsys.readouterr().out
    assert out.startswith("job_1  QUEUED\n")
    assert "\ntoolhub jobs watch job_1\n" in out
    assert "null" not in out


@pytest.mark.parametrize(("value", "expected"), [(None, "null"), ([1, 2], "[\n  1,\n  2\n]"), ("text", '"text"')])
def test_other_values_are_shown_as_json(value: object, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of(value))
    assert capsys.readouterr().out == f"{expected}\n  call_1 · 0.0 ms\n"


def test_a_very_long_text_is_cut_with_a_word_on_how_to_see_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of({"text": "line\n" * 1_500}))
    assert "… 1,300 more lines (use --json)" in capsys.readouterr().out


def test_output_that_was_seen_while_it_came_is_not_shown_twice(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of({"stdout": "a\nb\n", "stderr": "cut", "code": 0}), {"stdout": "a\nb\n", "stderr": "cut more"})
    assert capsys.readouterr().out.splitlines()[:-1] == ["stderr  cut", "code    0"]


def test_a_text_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of({"text": "\x1b[2J\nx", "name": "\x1b]0;x\x07"}))
    assert "\x1b" not in capsys.readouterr().out


def test_evidence_attempts_and_time_stand_below_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of({"a": 1}, attempts=3, truncated=True, replayed=True)
    result.evidence.add(type=result_pb2.EVIDENCE_TYPE_URL, ref="https://a.example/", summary="200, 5 bytes")
    result.durations.add(step=step_pb2.STEP_NAME_EXECUTE, duration_us=1_500)
    show_result(result)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  url: https://a.example/ — 200, 5 bytes",
        "  call_1 · 1.5 ms · 3 attempts · replayed · truncated",
    ]


def test_a_refusal_names_kind_violations_details_and_when_to_try_again(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_pb2.ToolError(
        kind=error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID, message="The arguments do not fit x: all of it", retryable=True
    )
    error.violations.add(path="/a/0", message="Wrong.", hint="Do right.")
    error.details.update({"line": 3, "policy_revision": "abc", "names": ["a"]})
    error.retry_after.FromMilliseconds(2_500)
    show_error(error)
    assert capsys.readouterr().out.splitlines() == [
        "✗ INPUT_SCHEMA_INVALID",
        "The arguments do not fit x:",
        "  /a/0  Wrong. Do right.",
        "  line   3",
        '  names  ["a"]',
        "  Retry after 2.5 s; the failure may be temporary.",
    ]


def test_a_plan_that_can_be_committed_ends_with_the_line_that_commits_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan = plan_pb2.Plan(tool="a/b", plan_digest="v1.x", effects=["Delete it."])
    plan.steps.add(step=step_pb2.STEP_NAME_RESOLVE, ok=True)
    plan.expires_at.FromJsonString("2030-01-01T12:00:00Z")
    show_plan(plan, "toolhub call a/b n=1")
    assert capsys.readouterr().out.splitlines() == [
        "✓ resolve",
        "→ Delete it.",
        "Nothing was changed. To run exactly this plan, until 12:00:00 UTC:",
        f"toolhub call a/b n=1 --plan {remember_plan('v1.x', 0)}",
    ]


def test_a_failed_plan_names_its_step_and_offers_no_commit(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_pb2.Plan(tool="a/b")
    plan.steps.add(step=step_pb2.STEP_NAME_CHECK_POLICY, ok=False, rule_id="r", reason="No.", remedy="Ask.\nline: 1")
    show_plan(plan, "toolhub call a/b")
    assert capsys.readouterr().out.splitlines() == ["✗ check_policy    No. [r]", "  Ask.", "  line: 1"]


@pytest.mark.promise("cli.next-step")
def test_a_call_that_waits_for_a_person_names_the_next_two_commands(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_pb2.ToolError(kind=error_pb2.ERROR_KIND_APPROVAL_REQUIRED, message="a/b: Ask.")
    error.details.update({"approval_id": "apr_1", "rule_id": "ask"})
    show_error(error, "toolhub call a/b n=1")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "toolhub approvals approve apr_1",
        "toolhub call a/b n=1 --approval apr_1",
    ]
    del error.details["approval_id"]
    show_error(error, "toolhub call a/b n=1")
    assert "approvals approve" not in capsys.readouterr().out


def test_a_reason_that_the_message_contains_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """At 178792e a quarantined tool's reason stood in the message and once more below it."""
    why = "Its definition changed; `toolhub pins diff time/now` shows how."
    error = error_pb2.ToolError(
        kind=error_pb2.ERROR_KIND_TOOL_QUARANTINED, message=f"time/now waits for an operator: {why} Use another tool."
    )
    error.details.update({"reason": why, "state": "quarantined"})
    show_error(error)
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("Its definition changed") == 1
    assert "  state  quarantined\n" in out
