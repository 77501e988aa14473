from __future__ import annotations

import asyncio
import gzip
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_fd_to_metric_families
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.telemetry.calls import ALLOWED, DENIED, SPEC, asked, granted, settled
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError
from toolhub_service.domain.ports import CallObserver
from toolhub_service.domain.result import StepName
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry import names
from toolhub_service.telemetry.calls import CallTelemetry
from toolhub_service.telemetry.logs import logger
from toolhub_service.telemetry.metrics import Metrics, MetricsEndpoint
from toolhub_service.telemetry.names import Metric, MetricKind
from toolhub_service.telemetry.tracing import Tracing

ROOT = Path(__file__).parents[3]


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for each in family.samples:
            if each.name == name and each.labels == labels:
                return each.value
    return None


def telemetry(metrics: Metrics) -> CallObserver:
    return CallTelemetry(metrics, Tracing(service_name="test", redactor=Redactor()), logger("test"))


def test_a_settled_call_is_counted_by_tool_and_outcome_and_each_of_its_steps_is_timed() -> None:
    metrics = Metrics(version="1.2.3")
    telemetry(metrics).on_settled_call(settled(asked()))
    telemetry(metrics).on_settled_call(settled(asked(), error=ErrorKind.TIMEOUT))
    assert sample(metrics, "toolhub_tool_invocations_total", tool=SPEC.name, ok="true") == 1
    assert sample(metrics, "toolhub_tool_invocations_total", tool=SPEC.name, ok="false") == 1
    assert sample(metrics, "toolhub_tool_errors_total", kind="TIMEOUT") == 1
    assert sample(metrics, "toolhub_tool_latency_seconds_sum", tool=SPEC.name) == pytest.approx(0.09)
    assert sample(metrics, "toolhub_tool_latency_seconds_bucket", tool=SPEC.name, le="0.05") == 2
    assert sample(metrics, "toolhub_tool_latency_seconds_bucket", tool=SPEC.name, le="0.025") == 0
    for number, step in enumerate(StepName, start=1):
        took = f"{names.TOOL_STEP.name}_"
        assert sample(metrics, took + "sum", step=step.value) == pytest.approx(0.002 * number)
        assert sample(metrics, took + "count", step=step.value) == 2
        assert sample(metrics, took + "bucket", step=step.value, le="0.01") == 2
        assert sample(metrics, took + "bucket", step=step.value, le="0.001") == (2 if number == 1 else 0)
    assert sample(metrics, "toolhub_build_info", version="1.2.3") == 1


def test_a_denial_names_the_rule_and_a_refusal_by_a_guard_its_kind() -> None:
    metrics = Metrics(version="1")
    steps = (StepName.RESOLVE, StepName.CHECK_POLICY)
    telemetry(metrics).on_settled_call(settled(asked(), error=ErrorKind.POLICY_DENIED, steps=steps, verdict=DENIED))
    telemetry(metrics).on_settled_call(settled(asked(), error=ErrorKind.PATH_OUTSIDE_SANDBOX, verdict=ALLOWED))
    telemetry(metrics).on_settled_call(settled(asked(), error=ErrorKind.TIMEOUT))
    assert sample(metrics, "toolhub_policy_denied_total", tool=SPEC.name, reason="rule-7") == 1
    assert sample(metrics, "toolhub_policy_denied_total", tool=SPEC.name, reason="PATH_OUTSIDE_SANDBOX") == 1
    assert metrics.exposition().count(b"\ntoolhub_policy_denied_total{") == 2


def test_retries_and_executions_in_flight_are_counted() -> None:
    metrics = Metrics(version="1")
    observer = telemetry(metrics)
    with observer.executing(granted(asked())), observer.executing(granted(asked("call-2"))):
        assert sample(metrics, "toolhub_executions_in_flight") == 2
    observer.on_retry(granted(asked()), ToolError(ErrorKind.TIMEOUT, "again"), 1)
    assert sample(metrics, "toolhub_executions_in_flight") == 0
    assert sample(metrics, "toolhub_tool_retries_total", tool=SPEC.name) == 1


@pytest.mark.promise("telemetry.bounded-labels")
def test_a_caller_cannot_make_labels_by_inventing_tools() -> None:
    metrics = Metrics(version="1")
    observer = telemetry(metrics)
    for number in range(50):
        observer.on_settled_call(settled(asked(tool=f"made/up{number}"), error=ErrorKind.TOOL_NOT_FOUND, spec=None))
    observer.on_settled_call(settled(asked()))
    assert sample(metrics, "toolhub_tool_invocations_total", tool="unknown", ok="false") == 50
    assert sample(metrics, "toolhub_tool_invocations_total", tool=SPEC.name, ok="true") == 1
    assert b"made/up" not in metrics.exposition()


def test_beyond_the_bound_every_tool_reason_and_method_is_other() -> None:
    metrics = Metrics(version="1", max_tools=3)
    for number in range(10):
        metrics.call_settled(f"tool-{number}", ok=True, latency_s=1, steps=())
    for number in range(300):
        metrics.policy_denied("tool-0", f"reason-{number}")
        metrics.rpc("unary", "toolhub.v1.ToolService", f"Method{number}").started.value += 1
        metrics.breaker_state(f"host-{number}", 2)
    assert sample(metrics, "toolhub_tool_invocations_total", tool="other", ok="true") == 7
    assert sample(metrics, "toolhub_policy_denied_total", tool="tool-0", reason="other") == 100
    other = {"grpc_type": "other", "grpc_service": "other", "grpc_method": "other"}
    assert sample(metrics, "grpc_server_started_total", **other) == 100
    assert sample(metrics, "toolhub_breaker_state", upstream="other") == 2


def test_rpcs_are_counted_under_the_names_dashboards_know() -> None:
    metrics = Metrics(version="1")
    rpc = metrics.rpc("unary", "toolhub.v1.ToolService", "Invoke")
    assert metrics.rpc("unary", "toolhub.v1.ToolService", "Invoke") is rpc
    rpc.started.value += 1
    rpc.received.value += 1
    rpc.sent.value += 3
    rpc.handled["NOT_FOUND"].value += 1
    rpc.seconds.observe(0.02)
    labels = {"grpc_type": "unary", "grpc_service": "toolhub.v1.ToolService", "grpc_method": "Invoke"}
    assert sample(metrics, "grpc_server_started_total", **labels) == 1
    assert sample(metrics, "grpc_server_msg_received_total", **labels) == 1
    assert sample(metrics, "grpc_server_msg_sent_total", **labels) == 3
    assert sample(metrics, "grpc_server_handled_total", grpc_code="NOT_FOUND", **labels) == 1
    assert sample(metrics, "grpc_server_handling_seconds_count", **labels) == 1


def test_the_policy_in_force_is_the_only_one_shown() -> None:
    metrics = Metrics(version="1")
    metrics.policy_loaded("rev-1")
    metrics.policy_loaded("rev-2")
    metrics.policy_rejected()
    assert sample(metrics, "toolhub_policy_info", revision="rev-1") is None
    assert sample(metrics, "toolhub_policy_info", revision="rev-2") == 1
    assert sample(metrics, "toolhub_policy_reloads_total", ok="false") == 1


def test_the_audit_log_is_measured() -> None:
    metrics = Metrics(version="1")
    metrics.audit_committed(12, 0.004, 3)
    metrics.audit_failed("full")
    assert sample(metrics, "toolhub_audit_events_total") == 12
    assert sample(metrics, "toolhub_audit_queue_depth") == 3
    assert sample(metrics, "toolhub_audit_commit_seconds_count") == 1
    assert sample(metrics, "toolhub_audit_failures_total") == 1


def test_every_name_is_exposed_and_documented() -> None:
    exposition = Metrics(version="1").exposition().decode()
    reference = (ROOT / "docs" / "metrics.md").read_text()
    for metric in names.METRICS:
        assert f"# TYPE {metric.name} {metric.kind.value}" in exposition
        assert f"`{metric.name}`" in reference


_WORKER = """
import sys
from pathlib import Path
from toolhub_service.domain.result import StepName
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.names import SOURCE_UP
metrics = Metrics(version="1", multiprocess_dir=Path(sys.argv[1]))
metrics.call_settled("a/b", ok=True, latency_s=3, steps=[(StepName.EXECUTE, 0, 5_000_000)])
metrics.in_flight.__enter__()
metrics.family(SOURCE_UP).labels("far").set(int(sys.argv[2]))
sys.stdout.write(metrics.exposition().decode())
"""


def test_several_workers_answer_as_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "service")}
    for workers, is_up, are_all_up in ((1, 1, 1), (2, 0, 0), (3, 1, 0)):
        words = [sys.executable, "-c", _WORKER, str(tmp_path), str(is_up)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert f'toolhub_tool_invocations_total{{ok="true",tool="a/b"}} {workers}.0' in done.stdout
        assert f'toolhub_tool_step_duration_seconds_bucket{{le="0.01",step="execute"}} {workers}.0' in done.stdout
        assert f'toolhub_source_up{{source="far"}} {are_all_up}.0' in done.stdout


def test_workers_that_cannot_share_report_it_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(HubFailure) as caught:
        Metrics(version="1", multiprocess_dir=tmp_path)
    assert caught.value.reason.name == "METRICS_NOT_SHARED"


def test_principals_are_distinguished_where_asked_for_up_to_the_bound() -> None:
    metrics = Metrics(version="1", max_tools=2, max_principals=2)
    for tool in ("a/b", "a/c", "a/d"):
        for number in range(5):
            metrics.call_settled(tool, ok=number < 4, latency_s=1, steps=(), principal=f"agent-{number}")
    name = "toolhub_tool_invocations_total"
    for tool in ("a/b", "a/c", "other"):
        assert sample(metrics, name, tool=tool, ok="true", principal="agent-1") == 1
        assert sample(metrics, name, tool=tool, ok="true", principal="other") == 2
        assert sample(metrics, name, tool=tool, ok="false", principal="other") == 1


ABBREVIATED = re.compile(r"_(ms|us|ns|s|sec|secs|milliseconds|minutes|hours|kb|mb|kib|mib|percent)(_|$)")


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
@pytest.mark.promise("telemetry.names")
def test_names_keep_the_rules_of_promtool_check_metrics(metric: Metric) -> None:
    """The rules of promlint, which promtool applies to a scrape."""
    assert re.fullmatch(r"(toolhub|grpc_server|mcp_server)_[a-z0-9_]+", metric.name)
    assert metric.help
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert not ABBREVIATED.search(metric.name.removesuffix("_total")), "base units, written out"
    assert not metric.name.endswith(("_count", "_sum", "_bucket"))
    assert not re.search(r"_(counter|gauge|histogram|summary)(_|$)", metric.name)
    if metric.unit == "s":
        assert metric.name.endswith("_seconds")
    assert metric.kind is not MetricKind.HISTOGRAM or metric.buckets


async def fetch(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_endpoint_serves_metrics_and_health_and_nothing_else() -> None:
    metrics = Metrics(version="1")
    endpoint = MetricsEndpoint(metrics.scraped)
    port = await endpoint.start("127.0.0.1", 0)
    answer = await fetch(port, b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == metrics.exposition()
    assert b" 200 OK" in await fetch(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert b" 503 " in await fetch(port, b"GET /readyz?full=1 HTTP/1.1\r\n\r\n")
    endpoint.is_ready = lambda: True
    assert b" 200 OK" in await fetch(port, b"GET /readyz HTTP/1.1\r\n\r\n")
    assert b" 404 " in await fetch(port, b"GET /../etc/passwd HTTP/1.1\r\n\r\n")
    assert (await fetch(port, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"readiness at /readyz.\n")
    assert (await fetch(port, b"HEAD / HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    assert b" 405 " in await fetch(port, b"POST /metrics HTTP/1.1\r\n\r\n")
    assert await fetch(port, b"x" * 20_000) == b""
    await endpoint.stop()
    with pytest.raises(ConnectionError):
        await fetch(port, b"GET /healthz HTTP/1.1\r\n\r\n")


async def test_a_scraper_gets_the_format_that_it_asks_for() -> None:
    metrics = Metrics(version="1")
    metrics.call_settled("a/b", ok=True, latency_s=0.04, steps=[(StepName.EXECUTE, 0, 5_000_000)])
    endpoint = MetricsEndpoint(metrics.scraped)
    port = await endpoint.start("127.0.0.1", 0)
    accept = b"Accept: application/openmetrics-text;version=1.0.0\r\nAccept-Encoding: gzip\r\n"
    head, _, body = (await fetch(port, b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n")).partition(b"\r\n\r\n")
    assert b"application/openmetrics-text" in head
    assert b"Content-Encoding: gzip" in head
    text = io.StringIO(gzip.decompress(body).decode())
    types = {family.name: family.type for family in text_fd_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert types["toolhub_tool_invocations"] == "counter"
    assert types["toolhub_tool_latency_seconds"] == "histogram"
    one = await fetch(port, b"GET /metrics?name[]=toolhub_build_info HTTP/1.1\r\n\r\n")
    assert [line for line in one.decode().splitlines() if line.startswith("toolhub_")] == [
        'toolhub_build_info{version="1"} 1.0'
    ]
    await endpoint.stop()


@pytest.mark.parametrize(
    ("request_line", "hosts", "is_answered"),
    [
        ("/metrics HTTP/1.1", ["127.0.0.1:9464"], True),
        ("/metrics HTTP/1.1", ["[::1]:9464"], True),
        ("/metrics HTTP/1.1", ["LOCALHOST"], True),
        ("/metrics HTTP/1.1", ["hub-metrics.:9464"], True),
        ("/metrics HTTP/1.0", [], True),
        ("/metrics HTTP/1.1", ["evil.example"], False),
        ("/healthz HTTP/1.1", ["evil.example:9464"], False),
        ("/metrics HTTP/1.1", ["127.0.0.1.evil.example"], False),
        ("/metrics HTTP/1.1", ["localhost", "evil.example"], False),
        ("http://evil.example/metrics HTTP/1.1", ["localhost"], False),
        ("/metrics HTTP/1.1", [""], False),
    ],
)
async def test_the_endpoint_answers_no_name_that_a_page_has_pointed_at_it(
    request_line: str, hosts: list[str], is_answered: bool
) -> None:
    """DNS rebinding. At befa727 every Host was answered."""
    endpoint = MetricsEndpoint(Metrics(version="1").scraped, ("localhost", "hub-metrics"))
    port = await endpoint.start("127.0.0.1", 0)
    sent = "".join(f"\r\nhost:  {host} " for host in hosts)
    answer = await fetch(port, f"GET {request_line}{sent}\r\n\r\n".encode())
    await endpoint.stop()
    assert answer.startswith(b"HTTP/1.1 200 " if is_answered else b"HTTP/1.1 421 ")
    assert is_answered or b"toolhub_build_info" not in answer
    assert is_answered or b"TOOLHUB_METRICS_HOSTS" in answer


def test_the_breaker_of_an_upstream_that_is_gone_is_reported_no_more() -> None:
    metrics = Metrics(version="1")
    metrics.breaker_state("mcp:files", 2)
    metrics.forget_upstream("mcp:files")
    metrics.forget_upstream("mcp:never-seen")
    assert sample(metrics, "toolhub_breaker_state", upstream="mcp:files") is None
    metrics.breaker_state("mcp:files", 0)
    assert sample(metrics, "toolhub_breaker_state", upstream="mcp:files") == 0
