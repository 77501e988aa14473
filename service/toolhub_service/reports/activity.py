"""Aggregates audit events to a report: calls, refusals by rule, approvals by person, slowest tools, lost jobs.

It takes events as AuditService sends them, in any order, and each once. Its memory is bounded by the tools, rules and
persons that occur, never by the events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from toolhub.v1 import error_pb2, event_pb2

REFUSED: Final = frozenset(
    {event_pb2.EVENT_TYPE_POLICY_DENIED, event_pb2.EVENT_TYPE_AUTH_FAILED, event_pb2.EVENT_TYPE_ROLE_REFUSED}
)
"""The types of refusals: by policy, of an unknown caller, and of one without the role."""
LOST_MAX: Final = 50
SLOWEST_MAX: Final = 10
PRINCIPALS_MAX: Final = 50
_SETTLED: Final = frozenset({event_pb2.EVENT_TYPE_TOOL_RESULT, event_pb2.EVENT_TYPE_POLICY_DENIED})
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_DECISIONS: Final = {"APPROVED": "approved", "REJECTED": "rejected"}


def refusal_kind(event: event_pb2.Event) -> str:
    """Return why a refusal was one, such as `APPROVAL_REQUIRED` or `KEY_EXPIRED`."""
    # What identity refused has the outcome `refused`, and says why among its attributes.
    return event.outcome if event.outcome not in ("", "refused") else event.attributes.get("reason", event.outcome)


class Refusals(Struct, frozen=True):
    """Refusals of one kind by one rule."""

    rule_id: str
    """Empty where no rule of the policy decided."""
    kind: str
    count: int


class Reasons(Struct, frozen=True):
    """Refusals for one reason, whatever rule gave it."""

    kind: str
    count: int


class PrincipalCalls(Struct, frozen=True):
    """What became of the calls of one principal."""

    principal: str
    """Empty: of callers that nobody knows."""
    calls: int
    succeeded: int
    failed: int
    refused: int
    """All refusals, those of RPCs included: with the others it may exceed the calls."""


class Decisions(Struct, frozen=True):
    """What one person decided."""

    person: str
    approved: int
    rejected: int


class ToolTimes(Struct, frozen=True):
    """How long the calls of one tool took that were executed."""

    tool: str
    calls: int
    mean_ms: float
    slowest_ms: float


class LostJob(Struct, frozen=True):
    """A job of which nobody knows how it ended."""

    job_id: str
    tool: str
    principal: str
    at: str
    """ISO 8601, UTC."""
    cause: str


class ActivityReport(Struct, frozen=True):
    """The report. Counts are of events within the span."""

    since: str
    """ISO 8601, UTC; empty: from the beginning."""
    until: str
    calls: int
    succeeded: int
    failed: int
    failures_by_kind: dict[str, int]
    refused: int
    """All refusals; more than the refused calls, because RPCs of unknown callers are among them."""
    refusals: list[Refusals]
    """Most frequent first."""
    reasons: list[Reasons]
    """Most frequent first."""
    principals: list[PrincipalCalls]
    """Those with the most calls and refusals, at most `PRINCIPALS_MAX`."""
    approvals_asked: int
    approvals_expired: int
    approvals: list[Decisions]
    slowest: list[ToolTimes]
    """The slowest by their slowest call, at most `SLOWEST_MAX`."""
    jobs_lost: int
    lost: list[LostJob]
    """At most `LOST_MAX`."""


class _Times(Struct):
    calls: int = 0
    total_ms: float = 0.0
    slowest_ms: float = 0.0


class _Tally(Struct):
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    principals: dict[str, Counter[str]] = field(default_factory=dict)
    decided: dict[str, Counter[str]] = field(default_factory=dict)
    times: dict[str, _Times] = field(default_factory=dict)
    lost: list[LostJob] = field(default_factory=list)

    def add(self, event: event_pb2.Event) -> None:
        if event.type in REFUSED:
            # Refused RPCs of a minute are one event with their number.
            count = event.attributes.get("count", "")
            times = int(count) if _COUNT.fullmatch(count) else 1
            self.refusals[event.rule_id, refusal_kind(event)] += times
            self._of(event)["refused"] += times
        if event.type in _SETTLED and event.outcome and not event.attributes.get("mode"):
            self._add_call(event)
        elif event.type == event_pb2.EVENT_TYPE_APPROVAL_ASKED:
            self.counts["asked"] += 1
        elif event.type == event_pb2.EVENT_TYPE_APPROVAL_EXPIRED:
            self.counts["expired"] += 1
        elif event.type == event_pb2.EVENT_TYPE_APPROVAL_DECIDED and event.outcome in _DECISIONS:
            self.decided.setdefault(event.principal, Counter())[_DECISIONS[event.outcome]] += 1
        elif event.type == event_pb2.EVENT_TYPE_JOB_STATE and event.attributes.get("state") == "LOST":
            self.counts["lost"] += 1
            if len(self.lost) < LOST_MAX:
                self.lost.append(_lost_job(event))

    def _of(self, event: event_pb2.Event) -> Counter[str]:
        return self.principals.setdefault(event.principal, Counter())

    def _add_call(self, event: event_pb2.Event) -> None:
        self.counts["calls"] += 1
        self._of(event)["calls"] += 1
        if event.type == event_pb2.EVENT_TYPE_POLICY_DENIED:
            return
        if event.error_kind == error_pb2.ERROR_KIND_UNSPECIFIED:
            self.counts["succeeded"] += 1
            self._of(event)["succeeded"] += 1
        else:
            self.counts["failed"] += 1
            self._of(event)["failed"] += 1
            self.failures[event.outcome] += 1
        if event.attributes.get("attempts", "1") != "0" and "replayed" not in event.attributes:
            took_ms = event.duration.ToMicroseconds() / 1_000
            of = self.times.setdefault(event.tool, _Times())
            of.calls += 1
            of.total_ms += took_ms
            of.slowest_ms = max(of.slowest_ms, took_ms)


def activity_report(events: Iterable[event_pb2.Event], *, since: str = "", until: str = "") -> ActivityReport:
    """Return the report of these events; `since` and `until` (ISO 8601, UTC) say which span they are of."""
    tally = _Tally()
    for event in events:
        tally.add(event)
    counts = tally.counts
    slowest = sorted(tally.times.items(), key=lambda item: -item[1].slowest_ms)[:SLOWEST_MAX]
    return ActivityReport(
        since=since,
        until=until,
        calls=counts["calls"],
        succeeded=counts["succeeded"],
        failed=counts["failed"],
        failures_by_kind=dict(tally.failures.most_common()),
        refused=tally.refusals.total(),
        refusals=[Refusals(rule, kind, count) for (rule, kind), count in tally.refusals.most_common()],
        reasons=_reasons(tally.refusals),
        principals=_principals(tally.principals),
        approvals_asked=counts["asked"],
        approvals_expired=counts["expired"],
        approvals=[
            Decisions(person, made["approved"], made["rejected"])
            for person, made in sorted(tally.decided.items(), key=lambda item: (-item[1].total(), item[0]))
        ],
        slowest=[ToolTimes(tool, t.calls, t.total_ms / t.calls, t.slowest_ms) for tool, t in slowest],
        jobs_lost=counts["lost"],
        lost=tally.lost,
    )


def _reasons(refusals: Counter[tuple[str, str]]) -> list[Reasons]:
    kinds: Counter[str] = Counter()
    for (_, kind), count in refusals.items():
        kinds[kind] += count
    return [Reasons(kind, count) for kind, count in kinds.most_common()]


def _principals(counted: dict[str, Counter[str]]) -> list[PrincipalCalls]:
    busiest = sorted(counted.items(), key=lambda item: (-item[1]["calls"] - item[1]["refused"], item[0]))
    return [
        PrincipalCalls(name, of["calls"], of["succeeded"], of["failed"], of["refused"])
        for name, of in busiest[:PRINCIPALS_MAX]
    ]


def report_tables(report: ActivityReport) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return each table of the report for people: its title, its headings, and its rows, which may be none."""
    lost = "Lost jobs" if report.jobs_lost == len(report.lost) else f"Lost jobs ({LOST_MAX} of {report.jobs_lost})"
    return [
        (
            "Calls by principal",
            ("WHO", "CALLS", "SUCCEEDED", "FAILED", "REFUSED"),
            [
                (of.principal or "–", f"{of.calls:,}", f"{of.succeeded:,}", f"{of.failed:,}", f"{of.refused:,}")
                for of in report.principals
            ],
        ),
        (
            "Refusals by reason",
            ("REASON", "TIMES"),
            [(of.kind or "–", f"{of.count:,}") for of in report.reasons],
        ),
        (
            "Refusals by rule",
            ("RULE", "KIND", "TIMES"),
            [(of.rule_id or "–", of.kind, f"{of.count:,}") for of in report.refusals],
        ),
        (
            "Failures by kind",
            ("KIND", "CALLS"),
            [(kind, f"{count:,}") for kind, count in report.failures_by_kind.items()],
        ),
        (
            "Approvals by person",
            ("WHO", "APPROVED", "REJECTED"),
            [(of.person, f"{of.approved:,}", f"{of.rejected:,}") for of in report.approvals],
        ),
        (
            "Slowest tools",
            ("TOOL", "CALLS", "MEAN", "SLOWEST"),
            [(of.tool, f"{of.calls:,}", f"{of.mean_ms:,.1f} ms", f"{of.slowest_ms:,.1f} ms") for of in report.slowest],
        ),
        (
            lost,
            ("JOB", "WHEN", "WHO", "CAUSE", "TOOL"),
            [(of.job_id, of.at, of.principal, of.cause, of.tool) for of in report.lost],
        ),
    ]


def report_sums(report: ActivityReport) -> list[tuple[str, str]]:
    """Return the sums of the report for people, by name."""
    refused = report.calls - report.succeeded - report.failed
    return [
        ("from", report.since or "the beginning"),
        ("until", report.until or "now"),
        ("calls", f"{report.calls:,}: {report.succeeded:,} succeeded, {report.failed:,} failed, {refused:,} refused"),
        ("refusals", f"{report.refused:,}"),
        ("approvals", f"{report.approvals_asked:,} asked, {report.approvals_expired:,} expired"),
        ("lost jobs", f"{report.jobs_lost:,}"),
    ]


def _lost_job(event: event_pb2.Event) -> LostJob:
    facts = event.attributes
    at = f"{event.at.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return LostJob(facts.get("job_id", ""), event.tool, event.principal, at, facts.get("cause", ""))
