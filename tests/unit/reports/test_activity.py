"""The report of activity: what is counted as what, and a page on which no text of others acts."""

from __future__ import annotations

from typing import Any

from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.reports.activity import LOST_MAX, Decisions, PrincipalCalls, Reasons, Refusals, activity_report
from toolhub_service.reports.activity_page import activity_page


def event(type: str, took_ms: int = 0, **fields: Any) -> event_pb2.Event:
    made = event_pb2.Event(type=event_pb2.EventType.Value(f"EVENT_TYPE_{type}"), **fields)
    made.duration.FromMilliseconds(took_ms)
    if fields.get("outcome") in ("TIMEOUT", "TOOL_NOT_FOUND", "POLICY_DENIED", "APPROVAL_REQUIRED"):
        made.error_kind = error_pb2.ErrorKind.Value(f"ERROR_KIND_{fields['outcome']}")
    return made


def result(outcome: str, took_ms: int = 1, tool: str = "x/y", **attributes: str) -> event_pb2.Event:
    facts = {"attempts": "1", **attributes}
    return event("TOOL_RESULT", took_ms, outcome=outcome, tool=tool, attributes=facts)


def test_a_call_is_counted_once_as_succeeded_failed_or_refused() -> None:
    report = activity_report(
        [
            event("TOOL_CALLED", tool="x/y"),
            result("ok"),
            result("TIMEOUT"),
            result("planned", mode="DRY_RUN"),
            event("POLICY_DENIED", outcome="APPROVAL_REQUIRED", rule_id="ask"),
        ]
    )
    assert (report.calls, report.succeeded, report.failed, report.refused) == (3, 1, 1, 1)
    assert report.failures_by_kind == {"TIMEOUT": 1}


def test_refusals_are_counted_by_rule_and_kind_and_those_of_a_minute_by_their_number() -> None:
    denied = event("POLICY_DENIED", outcome="POLICY_DENIED", rule_id="deny")
    report = activity_report(
        [
            denied,
            denied,
            event("AUTH_FAILED", attributes={"reason": "CREDENTIAL_REFUSED", "count": "7"}),
            event("ROLE_REFUSED", attributes={"reason": "ROLE_MISSING", "count": "no number"}),
        ]
    )
    assert report.refusals == [
        Refusals("", "CREDENTIAL_REFUSED", 7),
        Refusals("deny", "POLICY_DENIED", 2),
        Refusals("", "ROLE_MISSING", 1),
    ]
    assert report.refused == 10


def test_each_principal_and_each_reason_has_its_row() -> None:
    refused = {"reason": "CREDENTIAL_REFUSED", "count": "3"}
    report = activity_report(
        [
            result("ok"),
            event("TOOL_RESULT", outcome="ok", principal="ann", attributes={"attempts": "1"}),
            event("TOOL_RESULT", outcome="TIMEOUT", principal="ann", attributes={"attempts": "1"}),
            event("POLICY_DENIED", outcome="POLICY_DENIED", principal="ann", rule_id="one"),
            event("POLICY_DENIED", outcome="POLICY_DENIED", principal="ann", rule_id="two"),
            event("AUTH_FAILED", outcome="refused", attributes=refused),
        ]
    )
    assert report.principals == [PrincipalCalls("ann", 4, 1, 1, 2), PrincipalCalls("", 1, 1, 0, 3)]
    assert report.reasons == [Reasons("CREDENTIAL_REFUSED", 3), Reasons("POLICY_DENIED", 2)]
    page = activity_page(report)
    assert "<h2>Calls by principal</h2>" in page
    assert "<td>CREDENTIAL_REFUSED</td><td>3</td>" in page


def test_approvals_are_counted_by_who_decided() -> None:
    report = activity_report(
        [
            event("APPROVAL_ASKED", principal="agent"),
            event("APPROVAL_DECIDED", principal="eve", outcome="REJECTED"),
            event("APPROVAL_DECIDED", principal="ann", outcome="APPROVED"),
            event("APPROVAL_DECIDED", principal="ann", outcome="REJECTED"),
            event("APPROVAL_EXPIRED"),
        ]
    )
    assert report.approvals == [Decisions("ann", 1, 1), Decisions("eve", 0, 1)]
    assert (report.approvals_asked, report.approvals_expired) == (1, 1)


def test_the_slowest_tools_leave_out_answers_that_no_tool_gave() -> None:
    report = activity_report(
        [
            result("ok", 10, "a/fast"),
            result("ok", 100, "a/slow"),
            result("ok", 300, "a/slow"),
            result("ok", 9_000, "a/fast", replayed="true"),
            result("TOOL_NOT_FOUND", 9_000, "a/none", attempts="0"),
        ]
    )
    assert [(of.tool, of.calls, of.mean_ms, of.slowest_ms) for of in report.slowest] == [
        ("a/slow", 2, 200.0, 300.0),
        ("a/fast", 1, 10.0, 10.0),
    ]


def test_lost_jobs_are_all_counted_and_the_first_are_named() -> None:
    facts = {"job_id": "job_1", "state": "LOST", "cause": "RUNNER_DIED"}
    lost = event("JOB_STATE", tool="x/y", principal="ann", attributes=facts)
    done = event("JOB_STATE", attributes={"job_id": "job_2", "state": "SUCCEEDED"})
    report = activity_report([lost] * (LOST_MAX + 1) + [done])
    assert (report.jobs_lost, len(report.lost)) == (LOST_MAX + 1, LOST_MAX)
    assert (report.lost[0].job_id, report.lost[0].principal, report.lost[0].cause) == ("job_1", "ann", "RUNNER_DIED")
    assert f"{LOST_MAX} of {LOST_MAX + 1}" in activity_page(report)


def test_no_text_of_others_acts_on_the_page_and_it_loads_nothing() -> None:
    hostile = "<script src=https://evil.example/x.js>\u202e\x1b[2J\"'&"
    page = activity_page(
        activity_report(
            [
                result("ok", tool=hostile),
                event("APPROVAL_DECIDED", principal=hostile, outcome="APPROVED"),
                event("POLICY_DENIED", outcome="POLICY_DENIED", rule_id=hostile),
                event("JOB_STATE", tool=hostile, attributes={"job_id": hostile, "state": "LOST", "cause": hostile}),
            ]
        )
    )
    assert page.count("&lt;script src=https://evil.example/x.js&gt;") == 6
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
