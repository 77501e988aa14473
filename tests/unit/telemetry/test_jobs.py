"""What the telemetry of jobs measures, logs and traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from msgspec import structs
from structlog.testing import LogCapture

from tests.unit.runtime.jobs.job_harness import T0, a_job, answered, failed, in_state
from tests.unit.telemetry.test_tracing import SPAN, TRACE, RecordedTracing
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.job import Job, JobCounts, move_job
from toolhub_service.domain.result import JobState
from toolhub_service.telemetry.jobs import JobTelemetry
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.trace_context import current_traceparent


class ObserverHarness:
    def __init__(self) -> None:
        self.metrics = Metrics(version="1")
        self.recorded = RecordedTracing()
        self.logged = LogCapture()
        # Of its own making: what other tests configured must not decide what is logged here.
        log = structlog.wrap_logger(None, [self.logged], structlog.make_filtering_bound_logger(0))
        self.telemetry = JobTelemetry(self.metrics, self.recorded.tracing, log, lambda: T0 + 5_000)

    def value(self, sample: str) -> float:
        for line in self.metrics.exposition().decode().splitlines():
            if line.startswith(f"{sample} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"there is no {sample}")

    def lines(self, name: str) -> int:
        return sum(line.startswith(name) for line in self.metrics.exposition().decode().splitlines())


@pytest.fixture
def watched() -> Iterator[ObserverHarness]:
    watched = ObserverHarness()
    yield watched
    watched.recorded.close()


def _ended(job: Job, state: JobState = JobState.SUCCEEDED, at_unix_ms: int = T0 + 2_000) -> Job:
    result = answered(job) if state is JobState.SUCCEEDED else failed(job.call, ErrorKind.OUTCOME_UNKNOWN)
    return move_job(job, state, at_unix_ms, result=result)


def test_jobs_are_counted_by_tool_and_end(watched: ObserverHarness) -> None:
    queued, running = in_state(a_job(), JobState.RUNNING)
    watched.telemetry.on_accept(queued)
    watched.telemetry.on_change(queued, running)
    watched.telemetry.on_change(running, _ended(running))
    assert watched.value('toolhub_jobs_accepted_total{tool="test/text.write"}') == 1
    ended = [line for line in watched.metrics.exposition().decode().splitlines() if "jobs_ended_total{" in line]
    assert len(ended) == 1
    assert 'state="SUCCEEDED"' in ended[0]


def test_lost_jobs_are_counted_by_cause_and_no_tool_can_make_labels_without_end(watched: ObserverHarness) -> None:
    job = a_job()
    for number in range(200):
        lost = failed(job.call, ErrorKind.OUTCOME_UNKNOWN, cause=f"cause-{number}" if number else "RUNNER_DIED")
        watched.telemetry.on_change(job, move_job(job, JobState.LOST, T0, result=lost))
    assert watched.value('toolhub_jobs_lost_total{cause="RUNNER_DIED",tool="test/text.write"}') == 1
    assert watched.lines("toolhub_jobs_lost_total{") == 51
    assert watched.value('toolhub_jobs_lost_total{cause="other",tool="test/text.write"}') == 150


def test_time_in_a_state_runs_from_its_first_entry(watched: ObserverHarness) -> None:
    running = move_job(a_job(), JobState.RUNNING, T0 + 1_000)
    reported = move_job(running, JobState.RUNNING, T0 + 1_900)
    watched.telemetry.on_change(reported, _ended(reported, at_unix_ms=T0 + 3_000))
    assert watched.value('toolhub_job_state_seconds_sum{state="RUNNING"}') == 2.0


def test_durations_stay_non_negative_when_the_clock_goes_back(watched: ObserverHarness) -> None:
    job = a_job(state_since_unix_ms=T0 + 9_000)
    watched.telemetry.on_change(job, move_job(job, JobState.RUNNING, T0))
    assert watched.value('toolhub_job_state_seconds_sum{state="QUEUED"}') == 0.0


def test_tally_is_shown_whole_and_forgets(watched: ObserverHarness) -> None:
    watched.telemetry.on_counts(JobCounts({JobState.QUEUED: 3, JobState.RUNNING: 2}, T0))
    assert watched.value('toolhub_jobs_open{state="QUEUED"}') == 3
    assert watched.value("toolhub_jobs_oldest_queued_seconds") == 5.0
    watched.telemetry.on_counts(JobCounts({}))
    assert watched.value('toolhub_jobs_open{state="QUEUED"}') == 0
    assert watched.value("toolhub_jobs_oldest_queued_seconds") == 0.0


@pytest.mark.parametrize("state", [JobState.LOST, JobState.TIMED_OUT])
def test_failed_ends_are_logged(watched: ObserverHarness, state: JobState) -> None:
    job = a_job()
    watched.telemetry.on_change(job, _ended(job, state))
    (entry,) = watched.logged.entries
    assert (entry["event"], entry["job_id"], entry["state"]) == ("job_ended_badly", "job-1", state.value)
    assert (entry["kind"], entry["reason"]) == ("OUTCOME_UNKNOWN", "outcome_unknown")


def test_takeovers_watchers_and_troubles_are_shown(watched: ObserverHarness) -> None:
    watched.telemetry.on_takeover(a_job())
    watched.telemetry.watching(7)
    watched.telemetry.on_problem("job-1", refuse(ErrorKind.TOOL_UNAVAILABLE, "The store is away."))
    watched.telemetry.on_problem("", RuntimeError("a defect"))
    assert watched.value("toolhub_job_watchers") == 7
    taken, away, defect = watched.logged.entries
    assert taken["event"] == "job_taken_over"
    assert (away["problem"], "exc_info" in away) == ("The store is away.", False)
    assert isinstance(defect["exc_info"], RuntimeError)


def test_names_of_tools_are_bounded(watched: ObserverHarness) -> None:
    for number in range(1_500):
        watched.telemetry.on_accept(a_job(tool=f"test/t.n{number}"))
    assert watched.lines("toolhub_jobs_accepted_total{") <= 1_001


def test_tools_that_do_not_exist_have_no_name(watched: ObserverHarness) -> None:
    watched.telemetry.on_accept(a_job(tool="made/up", tool_digest=""))
    assert b"made/up" not in watched.metrics.exposition()


def test_run_is_a_trace_of_its_own_that_links_to_the_submitter(watched: ObserverHarness) -> None:
    job = a_job(trace_parent=f"00-{TRACE}-{SPAN}-01", runs=2)
    who = Principal("corp:acme/ann", issuer="corp", tenant="acme", actors=("corp:acme/bot", "corp:acme/relay"))
    with watched.telemetry.running(structs.replace(job, call=job.call._replace(principal=who))):
        inside = current_traceparent()
        assert watched.value("toolhub_jobs_running") == 1
    (span,) = watched.recorded.spans()
    assert span.name == "job test/text.write"
    assert span.parent is None
    named = {name.removeprefix("toolhub."): value for name, value in (span.attributes or {}).items()}
    assert (named["principal"], named["issuer"], named["tenant"]) == ("corp:acme/ann", "corp", "acme")
    assert named["actors"] == "corp:acme/bot corp:acme/relay"
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN]
    assert f"{span.context.trace_id:032x}" != TRACE
    assert inside.split("-")[1:3] == [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]
    assert current_traceparent() == ""
    assert watched.value("toolhub_jobs_running") == 0


@pytest.mark.parametrize("trace_parent", [f"00-{TRACE}-{SPAN}-00", "", "nonsense"])
def test_run_of_a_submission_that_was_not_recorded_is_not_either(watched: ObserverHarness, trace_parent: str) -> None:
    watched.recorded.tracing._bound = 0
    with watched.telemetry.running(a_job(trace_parent=trace_parent)):
        assert current_traceparent()
    assert not watched.recorded.spans()


def test_run_that_fails_is_running_no_more(watched: ObserverHarness) -> None:
    with pytest.raises(RuntimeError), watched.telemetry.running(a_job(trace_parent=f"00-{TRACE}-{SPAN}-01")):
        raise RuntimeError
    assert watched.value("toolhub_jobs_running") == 0
    assert len(watched.recorded.spans()) == 1


# Sources and pins
