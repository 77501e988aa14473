"""Passes reports of jobs on to metrics, traces and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.job import Job, JobCounts
from toolhub_service.domain.result import FINAL_STATES, JobState
from toolhub_service.telemetry import names
from toolhub_service.telemetry.logs import log_trouble
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.tracing import Tracing

_OPEN = [state for state in JobState if state not in FINAL_STATES]
_MAX_TOOLS = 1_000
_MAX_CAUSES = 50


class JobTelemetry:
    """Implements `JobObserver`."""

    def __init__(
        self, metrics: Metrics, tracing: Tracing, log: FilteringBoundLogger, now_unix_ms: Callable[[], int]
    ) -> None:
        self._tracing = tracing
        self._log = log
        self._now_unix_ms = now_unix_ms
        self._accepted = metrics.family(names.JOBS_ACCEPTED)
        self._ended = metrics.family(names.JOBS_ENDED)
        self._lost = metrics.family(names.JOBS_LOST)
        self._running: Any = metrics.family(names.JOBS_RUNNING)
        self._redeliveries = metrics.family(names.JOB_REDELIVERIES)
        self._watchers = metrics.family(names.JOB_WATCHERS)
        self._troubles = metrics.family(names.JOB_TROUBLES)
        self._oldest = metrics.family(names.JOBS_OLDEST_QUEUED)
        open_jobs, seconds = metrics.family(names.JOBS_OPEN), metrics.family(names.JOB_STATE_SECONDS)
        # Created at once, so that a state without jobs shows 0 instead of nothing.
        self._open = {state: open_jobs.labels(state.value) for state in _OPEN}
        self._seconds = {state: seconds.labels(state.value) for state in _OPEN}
        self._tools: set[str] = set()
        self._causes: set[str] = set()

    def on_accept(self, job: Job) -> None:
        self._accepted.labels(self._tool(job)).inc()

    def on_change(self, before: Job, job: Job) -> None:
        since_unix_ms = before.state_since_unix_ms or before.created_at_unix_ms
        self._seconds[before.state].observe(max(0, job.status.at_unix_ms - since_unix_ms) / 1_000)
        if job.state.is_final:
            self._ended.labels(self._tool(job), job.state.value).inc()
        if job.state is JobState.LOST:
            self._lost.labels(self._tool(job), self._cause(job)).inc()
        if job.state in (JobState.LOST, JobState.TIMED_OUT):
            self._log.warning(
                names.LOG_JOB_ENDED,
                job_id=job.job_id,
                call_id=job.call.call_id,
                tool=job.call.tool,
                state=job.state.value,
                runs=job.runs,
                **_why(job),
            )

    def on_takeover(self, job: Job) -> None:
        self._redeliveries.inc()
        self._log.warning(names.LOG_JOB_TAKEN, job_id=job.job_id, tool=job.call.tool, runs=job.runs)

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        attributes: dict[str, str | int] = {names.ATTRIBUTE_JOB: job.job_id, names.ATTRIBUTE_RUNS: job.runs}
        attributes |= {names.ATTRIBUTE_PRINCIPAL: job.call.principal.id}
        attributes |= {f"toolhub.{name}": fact for name, fact in job.call.principal.facts.items()}
        self._running.inc()
        try:
            with self._tracing.work(names.SPAN_JOB.format(tool=job.call.tool), job.trace_parent, attributes):
                yield
        finally:
            self._running.dec()

    def on_counts(self, counts: JobCounts) -> None:
        for state, gauge in self._open.items():
            gauge.set(counts.by_state.get(state, 0))
        oldest = counts.oldest_queued_at_unix_ms
        self._oldest.set(0 if oldest is None else max(0, self._now_unix_ms() - oldest) / 1_000)

    def watching(self, watchers: int) -> None:
        self._watchers.set(watchers)

    def on_problem(self, job_id: str, problem: BaseException) -> None:
        self._troubles.inc()
        log_trouble(self._log, names.LOG_JOB_TROUBLE, problem, job_id=job_id)

    def _tool(self, job: Job) -> str:
        """Return a bounded label: jobs of unknown tools are FAILED at once and kept."""
        return _bound_label(job.call.tool if job.tool_digest else names.UNKNOWN_TOOL, self._tools, _MAX_TOOLS)

    def _cause(self, job: Job) -> str:
        """Return a bounded label: a custom tool may name any cause."""
        return _bound_label(_why(job).get("cause") or names.OTHER, self._causes, _MAX_CAUSES)


def _bound_label(label: str, known: set[str], most: int) -> str:
    if label in known or len(known) < most:
        known.add(label)
        return label
    return names.OTHER


def _why(job: Job) -> dict[str, str]:
    """Return the answer's error for the log; empty when the record holds none."""
    error = job.status.result.error if job.status.result is not None else None
    if error is None:
        return {}
    return {"kind": error.kind.value, "cause": str(error.details.get("cause", "")), "reason": error.message}
