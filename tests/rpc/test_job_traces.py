"""What a job leaves behind: audit events, metrics, a span with a link, and what a model asks about its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from tests.hub import RunningHub
from tests.rpc.principals import WAIT, WRITE, Client, CountedWaits, CountedWrites, Principals, hubs_of, state
from tests.rpc.sample_tools import Echo
from toolhub.v1 import error_pb2
from toolhub_service.domain.event import EventType
from toolhub_service.telemetry.tracing import Tracing

ECHO = "test/text.echo"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class TraceHarness:
    def __init__(self) -> None:
        self.waits, self.writes = CountedWaits(), CountedWrites()

    def open(self, running: RunningHub) -> None:
        self.running, people = running, Principals(running)
        self.robot, self.other = people.at(running), people.at(running, "other")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr("toolhub_service.app.wiring.telemetry.Tracing", partial(Tracing, exporter=exporter))
    return exporter


@pytest.fixture
async def harness(tmp_path: Path, exporter: InMemorySpanExporter) -> AsyncIterator[TraceHarness]:
    harness = TraceHarness()
    async with hubs_of(tmp_path, {}, [harness.waits, harness.writes, Echo()]) as (running,):
        harness.open(running)
        yield harness


async def test_every_step_of_a_job_is_in_the_audit_log_under_its_call(harness: TraceHarness) -> None:
    harness.writes.let_go.set()
    job = await harness.robot.submit(WRITE, {"text": "a"}, request_id="r-1")
    await harness.robot.ended(job.job_id)
    events = [chained.event for chained in await harness.running.events(call_id=job.call_id)]
    recorded = [(event.type, event.attributes.get("state", "")) for event in events]
    assert recorded == [
        (EventType.TOOL_CALLED, ""),
        (EventType.JOB_SUBMITTED, "QUEUED"),
        (EventType.TOOL_RESULT, ""),
        (EventType.JOB_STATE, "RUNNING"),
        (EventType.TOOL_CALLED, ""),
        (EventType.TOOL_RESULT, ""),
        (EventType.JOB_STATE, "SUCCEEDED"),
    ]
    assert {(event.principal, event.tool, event.request_id) for event in events} == {("robot", WRITE, "r-1")}
    assert {event.args_digest for event in events if event.type is not EventType.TOOL_CALLED} == {job.args_digest}
    assert all(event.attributes["job_id"] == job.job_id for event in events if event.type.value.startswith("JOB"))
    assert (await harness.running.hub.audit.verify()).ok


async def test_cancellation_is_audited_with_its_reason(harness: TraceHarness) -> None:
    job = await harness.robot.submit(WAIT)
    await harness.waits.started.wait()
    await harness.robot.cancel(job.job_id, "the build is red")
    await harness.robot.ended(job.job_id)
    events = await harness.running.events(types=frozenset({EventType.JOB_STATE}))
    states = [(each.event.attributes["state"], each.event.attributes.get("cancel_reason")) for each in events]
    assert states == [("RUNNING", None), ("CANCELLING", "the build is red"), ("CANCELLED", "the build is red")]


async def test_jobs_are_counted_and_timed(harness: TraceHarness) -> None:
    held = await harness.robot.submit(WAIT)
    await harness.waits.started.wait()
    await harness.robot.submit("test/text.unknown")
    shown = partial(_sample, harness.running)
    assert shown("toolhub_jobs_running") == 1
    assert shown("toolhub_jobs_accepted_total", tool=WAIT) == 1
    watch = aiter(harness.robot.watch(held.job_id))
    await anext(watch)
    assert shown("toolhub_job_watchers") == 1
    harness.waits.let_go.set()
    assert [state(answer.status) async for answer in watch][-1] == "SUCCEEDED"
    assert shown("toolhub_job_watchers") == 0
    assert shown("toolhub_jobs_ended_total", tool=WAIT, state="SUCCEEDED") == 1
    assert shown("toolhub_job_state_seconds_count", state="RUNNING") == 1
    assert shown("toolhub_job_state_seconds_count", state="QUEUED") == 1


def _sample(running: RunningHub, name: str, **labels: str) -> float | None:
    text = running.hub.observing.metrics.exposition().decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), None)


async def test_run_is_a_trace_of_its_own_linked_to_the_submission(
    harness: TraceHarness, exporter: InMemorySpanExporter
) -> None:
    robot = harness.robot
    traced = Client(robot.running, (*robot.metadata, ("traceparent", f"00-{TRACE}-{SPAN}-01")))
    job = await traced.submit(ECHO, {"text": "a"})
    await robot.ended(job.job_id)
    harness.running.hub.observing.tracing.flush()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    submission, run = spans["toolhub.v1.JobService/SubmitJob"], spans[f"job {ECHO}"]
    assert f"{submission.context.trace_id:032x}" == TRACE
    assert run.context.trace_id != submission.context.trace_id
    (link,) = run.links
    assert (link.context.trace_id, link.context.span_id) == (submission.context.trace_id, submission.context.span_id)
    attributes = dict(run.attributes or {})
    assert (attributes["toolhub.job.id"], attributes["toolhub.job.runs"]) == (job.job_id, 1)


async def test_model_asks_about_its_own_jobs_and_no_other(harness: TraceHarness) -> None:
    job = await harness.robot.submit(WAIT, {"text": "made"})
    await harness.robot.seen(job.job_id, lambda entry: entry.progress.message == "half way")
    asked = {"jobId": job.job_id}
    status = await _value(harness.robot, "core/job.status", asked)
    assert (status["state"], status["isFinal"], status["progress"]["step"]) == ("RUNNING", False, 1)
    early = await harness.robot.call("core/job.result", asked)
    assert not early.ok
    assert "core/job.status" in early.error.message
    for tool in ("core/job.status", "core/job.result", "core/job.cancel"):
        foreign = await harness.other.call(tool, asked)
        assert foreign.error.kind == error_pb2.ERROR_KIND_NOT_FOUND, tool
    harness.waits.let_go.set()
    await harness.robot.ended(job.job_id)
    result = await _value(harness.robot, "core/job.result", asked)
    assert (result["ok"], result["value"], result["job"]["state"]) == (True, {"text": "made"}, "SUCCEEDED")


async def test_model_cancels_its_own_job(harness: TraceHarness) -> None:
    job = await harness.robot.submit(WAIT)
    await harness.waits.started.wait()
    answer = await _value(harness.robot, "core/job.cancel", {"jobId": job.job_id, "reason": "enough"})
    assert answer["state"] == "CANCELLING"
    assert state((await harness.robot.ended(job.job_id))[-1]) == "CANCELLED"


async def _value(client: Client, tool: str, args: dict[str, Any]) -> Any:
    result = await client.call(tool, args)
    assert result.ok, result.error.message
    return json.loads(result.result_json)
