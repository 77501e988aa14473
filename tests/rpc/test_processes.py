"""What only a process of its own shows: workers, signals, files that change, a port that is taken."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.hub import channel_to, request
from tests.processes import Served, ended, is_alive, refused, served
from toolhub.v1 import audit_service_pb2, error_pb2, event_pb2
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.config_files.key_file import KeyFile

pytestmark = pytest.mark.slow

TOOL = "core/util.time.now"
DENY = "rules: [{id: no-time, effect: DENY, tools: [core/util.time.now]}]\n"
INVALID = "rules: [{id: broken, effect: PERHAPS}]\n"


async def call(address: str) -> Any:
    """One call over a connection of its own, so that the kernel chooses the worker anew."""
    async with channel_to(address) as channel:
        stub: Any = ToolServiceStub(channel)
        return (await stub.Invoke(request(TOOL), timeout=60)).result


async def writers(address: str) -> set[str]:
    """Which processes have written to the audit log."""
    async with channel_to(address) as channel:
        stub: Any = AuditServiceStub(channel)
        where = event_pb2.EventFilter(types=[event_pb2.EVENT_TYPE_TOOL_RESULT])
        page = await stub.ListEvents(audit_service_pb2.ListEventsRequest(filter=where, page_size=1_000), timeout=60)
        return {event.writer for event in page.events}


async def handled(running: Served) -> float:
    """Invoke RPCs answered, over all workers."""
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(running.metrics_url, timeout=10).read().decode())
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "grpc_server_handled_total" and sample.labels["grpc_method"] == "Invoke"
    )


async def both_answer(running: Served) -> set[str]:
    """Call until two writers have been seen; how many calls it takes is the kernel's choice."""
    for _ in range(10):
        for _ in range(10):
            assert (await call(running.address)).ok
        seen = await writers(running.address)
        if len(seen) >= 2:
            return seen
    raise AssertionError(f"one worker answered everything: {seen}")


@pytest.mark.promise("serving.workers")
async def test_two_workers_share_a_port_are_counted_together_and_replaced_when_killed(tmp_path: Path) -> None:
    async with served(tmp_path, "--workers", "2") as running:
        first = await both_answer(running)
        assert {name.split("-")[0] for name in first} == {"worker0", "worker1"}
        calls = await handled(running)
        assert calls >= 10
        assert calls % 10 == 0
        victim, survivor = running.children()
        os.kill(victim, signal.SIGKILL)
        await running.lines_that(lambda line: "ended with status -9" in str(line.get("event")))
        (replacement,) = await fresh_writers(running, first)
        assert replacement.startswith("worker")
        workers = running.children()
        assert len(workers) == 2
        assert survivor in workers
        assert victim not in workers
        assert await running.stop() == 0
        assert not [pid for pid in workers if is_alive(pid)]


@pytest.mark.promise("serving.no-orphans")
async def test_supervisor_that_is_killed_leaves_no_worker_behind(tmp_path: Path) -> None:
    async with served(tmp_path, "--workers", "2") as running:
        workers = running.children()
        assert len(workers) == 2
        running.signal(signal.SIGKILL)
        await running.process.wait()
        for worker in workers:
            await ended(worker)
            assert not is_alive(worker)


async def test_several_workers_on_one_unix_socket_are_refused_in_words(tmp_path: Path) -> None:
    status, words = await refused(tmp_path, "--workers", "2", listen=f"unix:{tmp_path}/hub.sock")
    assert status == 1
    assert "several workers" in words
    assert "Traceback" not in words


async def test_revoked_key_is_refused_after_a_hangup(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "api-keys.yaml")
    key = keys.create("robot")
    (tmp_path / "policy.yaml").write_text("grants: [{principals: [robot], capabilities: [read:fs]}]")
    environment = {"TOOLHUB_AUTH_MODES": "api-key", "TOOLHUB_POLICY_RELOAD_S": "0"}
    async with served(tmp_path, environment=environment) as running, channel_to(running.address) as channel:
        stub: Any = ToolServiceStub(channel)
        metadata = (("x-api-key", key),)
        assert await stub.Invoke(request(TOOL), metadata=metadata, timeout=60)
        assert keys.revoke("_".join(key.split("_")[:2]))
        running.signal(signal.SIGHUP)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call_for_ever(stub, metadata)
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def call_for_ever(stub: Any, metadata: Any) -> None:
    """One call after the other, until one is refused."""
    async with asyncio.timeout(60):
        while True:
            await stub.Invoke(request(TOOL), metadata=metadata, timeout=60)


async def fresh_writers(running: Served, known: set[str]) -> set[str]:
    """Writers that have not been seen before: the worker that was started again serves."""
    async with asyncio.timeout(60):
        while not (fresh := await writers(running.address) - known):
            assert (await call(running.address)).ok
    return fresh


@pytest.mark.promise("policy.atomic-reload")
async def test_hangup_reloads_the_policy_and_an_invalid_file_keeps_the_old_one(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    async with (
        served(tmp_path, environment={"TOOLHUB_POLICY_RELOAD_S": "0"}) as running,
        channel_to(running.address) as channel,
    ):
        assert (await call(running.address)).ok
        policy.write_text(DENY)
        running.signal(signal.SIGHUP)
        await running.logged("policy_loaded", 2)
        assert (await call(running.address)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        policy.write_text(INVALID)
        running.signal(signal.SIGHUP)
        rejected = await running.logged("policy_rejected")
        assert "PERHAPS" in rejected["problem"] or "effect" in rejected["problem"]
        assert (await call(running.address)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        stub: Any = AuditServiceStub(channel)
        where = event_pb2.EventFilter(types=[event_pb2.EVENT_TYPE_CONFIG_LOADED, event_pb2.EVENT_TYPE_CONFIG_REJECTED])
        page = await stub.ListEvents(audit_service_pb2.ListEventsRequest(filter=where), timeout=60)
        assert [event.type for event in page.events] == list(where.types)
        assert page.events[1].outcome == "refused"


async def test_a_name_in_the_policy_that_fits_nothing_known_is_logged(tmp_path: Path) -> None:
    """Fails at befa727: a misspelt tool in a DENY rule forbids nothing and nobody is told."""
    (tmp_path / "policy.yaml").write_text("rules: [{id: never, effect: DENY, tools: [core/fs.deletPath]}]")
    async with served(tmp_path, environment={"TOOLHUB_POLICY_RELOAD_S": "0"}) as running:
        (warning,) = (await running.logged("policy_names_unknown"))["warnings"]
        assert warning.endswith("did you mean `core/fs.deletePath`?")
        many = ", ".join(f"'core/x{index}'" for index in range(50))
        (tmp_path / "policy.yaml").write_text(f"rules: [{{id: never, effect: DENY, tools: [{many}]}}]")
        running.signal(signal.SIGHUP)
        warning = await running.logged("policy_names_unknown", 2)
        assert (len(warning["warnings"]), warning["are_all"]) == (20, False)


@pytest.mark.promise("policy.atomic-reload")
async def test_changed_file_is_noticed_without_a_signal(tmp_path: Path) -> None:
    async with served(tmp_path, environment={"TOOLHUB_POLICY_RELOAD_S": "0.1"}) as running:
        (tmp_path / "policy.yaml").write_text(DENY)
        await running.logged("policy_loaded", 2)
        assert (await call(running.address)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        (tmp_path / "policy.yaml").unlink()
        await running.logged("policy_rejected")  # a file that vanished is a mistake, not an empty policy
        assert (await call(running.address)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED


@pytest.mark.promise("serving.drain")
async def test_start_and_stop_are_audited_and_the_log_verifies_afterwards(tmp_path: Path) -> None:
    async with served(tmp_path) as running:
        assert (await call(running.address)).ok
        assert await running.stop() == 0
    async with served(tmp_path) as running, channel_to(running.address) as channel:
        stub: Any = AuditServiceStub(channel)
        page = await stub.ListEvents(audit_service_pb2.ListEventsRequest(), timeout=60)
        names = [event_pb2.EventType.Name(event.type).removeprefix("EVENT_TYPE_") for event in page.events]
        assert names == ["HUB_STARTED", "TOOL_RESULT", "HUB_STOPPED", "HUB_STARTED"]
        assert (await stub.VerifyAudit(audit_service_pb2.VerifyAuditRequest(), timeout=60)).ok


@pytest.mark.promise("serving.clear-refusals")
@pytest.mark.parametrize("first", ["1", "2"])
async def test_second_hub_on_the_same_port_says_which_port_is_taken(tmp_path: Path, first: str) -> None:
    """Workers share their port; two hubs, each with a policy of its own, never do."""
    async with served(tmp_path / "first", "--workers", first) as running:
        for second in ("1", "2"):
            status, words = await refused(tmp_path / second, "--workers", second, listen=running.address)
            assert status == 1, second
            assert running.address in words, second
            assert "in use" in words, second
            assert "Traceback" not in words, second
        assert (await call(running.address)).ok


@pytest.mark.promise("identity.insecure-only-locally")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_hub_without_credentials_refuses_an_open_address_in_words(tmp_path: Path, workers: str) -> None:
    status, words = await refused(tmp_path, "--workers", workers, listen="0.0.0.0:0")
    assert status == 1
    assert "api-key" in words
    assert "Traceback" not in words


@pytest.mark.promise("serving.clear-refusals")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_invalid_policy_stops_the_start_in_words(tmp_path: Path, workers: str) -> None:
    (tmp_path / "policy.yaml").write_text(INVALID)
    status, words = await refused(tmp_path, "--workers", workers)
    assert status == 1
    assert "policy.yaml" in words
    assert "Traceback" not in words
