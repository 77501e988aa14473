"""A hub that carries its audit log to a file and to a collector, is killed while it does, and lets old events go."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import yaml
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)

from tests.e2e.command_line import CommandLine
from tests.free_port import free_port
from tests.kills import KILLS
from tests.processes import Served, served
from toolhub.v1 import audit_service_pb2 as audit_pb
from toolhub.v1 import call_pb2, tool_service_pb2
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.audit_otlp import OtlpSink
from toolhub_service.stores.audit.export import Batch

CANARY = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
Place = tuple[str, int]


class Collector(LogsServiceServicer):
    """Takes logs over OTLP/gRPC; away now and then, and sometimes after it has taken them."""

    def __init__(self) -> None:
        self.taken: Counter[Place] = Counter()
        self.bodies: list[str] = []
        self.tenants: list[str] = []
        self.news = threading.Condition()
        self.requests = 0

    def Export(self, request: Any, context: grpc.ServicerContext) -> ExportLogsServiceResponse:
        records = [r for logs in request.resource_logs for scope in logs.scope_logs for r in scope.log_records]
        with self.news:
            self.requests += 1
            if self.requests % 7 == 3:
                context.abort(grpc.StatusCode.UNAVAILABLE, "away")
            for record in records:
                self.bodies.append(record.body.string_value)
                named = {each.key: each.value.string_value for each in record.attributes}
                self.tenants.append(named.get("toolhub.tenant", ""))
                line = json.loads(record.body.string_value)
                self.taken[line["writer"], line["sequence"]] += 1
            self.news.notify_all()
            if self.requests % 7 == 5:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return ExportLogsServiceResponse()

    async def reached(self, count: int) -> None:
        """Return once it has taken so many different events."""

        def wait() -> bool:
            with self.news:
                return self.news.wait_for(lambda: len(self.taken) >= count, 120)

        assert await asyncio.to_thread(wait), f"{len(self.taken)} of {count}"


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_LogsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


async def call(hub: Served) -> None:
    intent = call_pb2.ToolIntent(tool="core/util.time.now", args_json=b"{}", purpose=f"time; key {CANARY}")
    async with grpc.aio.insecure_channel(hub.address) as channel:
        with suppress(grpc.aio.AioRpcError):  # the hub is killed
            while True:
                await ToolServiceStub(channel).Invoke(tool_service_pb2.InvokeRequest(intent=intent))


async def verified(hub: Served) -> bool:
    async with grpc.aio.insecure_channel(hub.address) as channel:
        return bool((await AuditServiceStub(channel).VerifyAudit(audit_pb.VerifyAuditRequest())).ok)


def stored(data: Path) -> set[Place]:
    with closing(sqlite3.connect(data / "audit.db")) as audit:
        return set(audit.execute("SELECT writer, sequence FROM events"))


def written(file: Path) -> list[Place]:
    data = file.read_bytes() if file.exists() else b""
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [(line["writer"], line["sequence"]) for line in map(json.loads, lines)]


def settings(folder: Path, audit: dict[str, Any]) -> str:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump({"audit": audit, "policy": {"reload_s": 0.1}}))
    return str(path)


def test_a_log_record_names_the_tenant_of_its_principal(collector: tuple[Collector, str]) -> None:
    taker, endpoint = collector
    tenant_of = {"acme-bot": "acme", "ops": "*"}
    principals = ("acme-bot", "ops", "")
    rows = [(row, "w", row, 1, "TOOL_RESULT", principal, *[""] * 7) for row, principal in enumerate(principals)]
    lines = [json.dumps({"writer": "w", "sequence": row}).encode() for row, _ in enumerate(principals)]
    sink = OtlpSink(endpoint, {}, tenant_of=lambda principal: tenant_of.get(principal, ""))
    assert sink.send(Batch(rows, lines)) == 0
    sink.close()
    assert taker.tenants == ["acme", "*", ""]


@pytest.mark.promise("audit.export-at-least-once")
async def test_no_event_is_lost_over_kills_of_the_hub_and_a_collector_that_comes_and_goes(
    collector: tuple[Collector, str], tmp_path: Path
) -> None:
    taker, endpoint = collector
    file = tmp_path / "out/audit.jsonl"
    export = {"file": str(file), "otlp_endpoint": endpoint, "interval_s": 0.05}
    config = settings(tmp_path, {"export": export})
    data = tmp_path / "data"
    for _ in range(max(2, KILLS // 7)):
        async with served(data, "--config", config) as hub:
            calling = asyncio.create_task(call(hub))
            await taker.reached(len(taker.taken) + 40)
            hub.signal(signal.SIGKILL)
            await hub.process.wait()
            await calling
    async with served(data, "--config", config) as hub:
        expected = stored(data)
        while not expected <= (taker.taken.keys() & set(written(file))):
            assert await verified(hub)
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(hub.metrics_url)).text
    assert 'toolhub_audit_export_backlog{sink="otlp"}' in metrics
    assert 'toolhub_audit_exported_total{sink="file"}' in metrics
    lines = written(file)
    for writer in {writer for writer, _ in lines}:
        first_seen = list(dict.fromkeys(sequence for each, sequence in lines if each == writer))
        assert first_seen == list(range(1, len(first_seen) + 1)), "out of order"
    assert CANARY not in file.read_text()
    assert CANARY not in "".join(taker.bodies)


@pytest.mark.promise("audit.keep")
async def test_old_events_leave_behind_a_checkpoint_once_every_place_has_them(tmp_path: Path) -> None:
    data, cli = tmp_path / "data", CommandLine(tmp_path)
    nowhere = f"http://127.0.0.1:{free_port()}"
    old: dict[str, Any] = {"keep_days": 1e-9}
    away = settings(tmp_path, {**old, "export": {"otlp_endpoint": nowhere, "interval_s": 0.05}})
    async with served(data, "--config", away) as hub:
        calling = asyncio.create_task(call(hub))
        await hub.logged("audit_upkeep_failed")
        before = stored(data)
        while len(stored(data)) < len(before) + 20:  # calls do not wait for a place that is away
            assert await verified(hub)
        calling.cancel()
        assert before <= stored(data), "it has removed what nobody has"
        doctor = cli("doctor", "--json", "--config", away, "--data-dir", str(data)).json
    findings = {finding["name"]: finding for finding in doctor["findings"]}
    assert "audit events 1e-09 days" in findings["retention"]["told"]
    assert "events behind" in findings["audit to otlp"]["told"]
    before = stored(data)
    gone = settings(tmp_path, {**old, "archive_folder": str(tmp_path / "archive")})
    async with served(data, "--config", gone) as hub:
        removed = await hub.logged("retention_removed")
        assert removed["what"] == "audit events"
        while before & stored(data):
            assert await verified(hub)
    archived = [place for path in sorted((tmp_path / "archive").iterdir()) for place in written(path)]
    assert before <= set(archived)
    assert cli("audit", "verify", "--data-dir", str(data)).code == 0
    assert b'"kind":"prune"' in (data / "audit-checkpoints.jsonl").read_bytes()
