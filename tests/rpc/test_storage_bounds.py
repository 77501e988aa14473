"""What a caller may store: bytes of workspaces, artifacts and memory, each with a soft and a hard bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import grpc
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, Client, Principals
from tests.rpc.statuses import failed
from toolhub.v1 import artifact_service_pb2, artifact_service_pb2_grpc, error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.root import toolhub

pytestmark = pytest.mark.asyncio(loop_scope="module")

KIB: Final = 1_024
POLICY: Final = """
extends: none
tenants:
  - {name: acme, principals: ["acme-*"], max_workspace_bytes: 400000, max_memory_bytes: 3000}
  - {name: globex, principals: ["globex-*"]}
  - {name: "*", principals: [ops]}
grants:
  - principals: ["*"]
    capabilities: [read:fs, write:fs, execute:command, read:memory, write:memory, danger:destructive]
storage:
  - {principals: [globex-bot], workspace_bytes: 100000, artifact_bytes: 50000, memory_bytes: 2000, soft_ratio: 0.5}
  - {principals: ["acme-*", globex-two], workspace_bytes: 300000}
commands:
  - name: split
    path: /usr/bin/split
    positionals: ".*"
    flags: [{flag: "-b", value: ".*"}, {flag: "-a", value: ".*"}]
  - {name: dd, path: /usr/bin/dd, positionals: ".*", end_of_options: false}
destructive_requires_plan: false
"""
NAMES: Final = ("acme-one", "acme-two", "globex-bot", "globex-two", "ops")
WRITE, DELETE = "core/fs.writeText", "core/fs.deletePath"


class BoundedHub:
    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.people = Principals(hub, names=NAMES)

    def at(self, who: str) -> Client:
        return self.people.at(self.hub, who)

    async def write(self, who: str, path: str, size_bytes: int, **fields: Any) -> result_pb2.ToolResult:
        args = {"path": path, "text": "x" * size_bytes, "overwrite": True}
        return await self.at(who).call(WRITE, args, request_id="work", **fields)

    async def delete(self, who: str, path: str) -> result_pb2.ToolResult:
        return await self.at(who).call(DELETE, {"path": path, "confirm": True, "recursive": True}, request_id="work")

    async def stored(self, who: str) -> dict[tuple[str, str], pb.StorageUse]:
        answer = await self.hub.stub.GetServerInfo(
            pb.GetServerInfoRequest(storage=True), metadata=self.at(who).metadata, timeout=CALL_TIMEOUT_S
        )
        return {(use.kind, use.tenant): use for use in answer.storage}

    async def upload(self, who: str, size_bytes: int) -> Any:
        async def parts() -> AsyncIterator[Any]:
            header = artifact_service_pb2.ArtifactHeader(name="a.bin", size_bytes=size_bytes)
            yield artifact_service_pb2.WriteArtifactRequest(header=header)
            yield artifact_service_pb2.WriteArtifactRequest(chunk=b"a" * size_bytes)

        stub = artifact_service_pb2_grpc.ArtifactServiceStub(self.hub.channel)
        return await stub.WriteArtifact(parts(), metadata=self.at(who).metadata, timeout=CALL_TIMEOUT_S)

    async def types(self, who: str, *words: str) -> Result:
        key = self.at(who).metadata[0][1].removeprefix("Bearer ")
        typed = [*words, "--address", self.hub.address, "--api-key", key]
        environment = {"TOOLHUB_DATA_DIR": str(Paths(self.hub.hub.settings).data_dir)}
        return await asyncio.to_thread(CliRunner().invoke, toolhub, typed, env=environment)

    async def recounted(self) -> None:
        """Have every account counted by a walk, as it is within seconds of a program's end."""
        await self.hub.hub.storage.watch.round()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bounded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BoundedHub]:
    async with running_hub(tmp_path_factory.mktemp("hub"), policy=POLICY, settings=BY_KEY) as hub:
        yield BoundedHub(hub)


@pytest.mark.promise("storage.bounds")
async def test_a_caller_at_its_bound_is_told_what_is_used_and_how_to_free_it_and_others_go_on(
    bounded: BoundedHub,
) -> None:
    assert (await bounded.write("globex-bot", "a.txt", 60_000)).ok
    refused = (await bounded.write("globex-bot", "b.txt", 40_000)).error
    assert refused.kind == error_pb2.ERROR_KIND_BUDGET_EXCEEDED
    assert not refused.retryable
    assert refused.details["limit"] == "storage.workspace_bytes"
    assert refused.details["quota_bytes"] == 100_000
    assert 60_000 < cast(float, refused.details["used_bytes"]) < 90_000
    assert "core/fs.deletePath" in refused.message
    assert (await bounded.at("globex-bot").call("core/fs.readText", {"path": "a.txt"}, request_id="work")).ok
    assert (await bounded.write("globex-two", "b.txt", 60_000)).ok
    # A request of its own is no way around: the bound is the caller's.
    other = await bounded.at("globex-bot").call(WRITE, {"path": "c", "text": "x" * 40_000}, request_id="another")
    assert other.error.details["limit"] == "storage.workspace_bytes"
    assert (await bounded.delete("globex-bot", "a.txt")).ok
    assert (await bounded.write("globex-bot", "b.txt", 60_000)).ok
    assert (await bounded.delete("globex-bot", "b.txt")).ok


async def test_what_is_refused_or_replaced_or_fails_is_not_counted(bounded: BoundedHub) -> None:
    async def used() -> int:
        return (await bounded.stored("globex-two"))["workspaces", ""].used_bytes

    await bounded.write("globex-two", "r.txt", 50_000)
    before = await used()
    for _ in range(3):
        assert (await bounded.write("globex-two", "r.txt", 50_000)).ok
        assert not (await bounded.write("globex-two", "huge.txt", 400_000)).ok
    taken = await bounded.at("globex-two").call(WRITE, {"path": "r.txt", "text": "x" * 9_000}, request_id="work")
    assert taken.error.kind == error_pb2.ERROR_KIND_ALREADY_EXISTS
    assert await used() == before
    moved = await bounded.at("globex-two").call(
        "core/fs.move", {"source": "r.txt", "destination": "s.txt"}, request_id="work"
    )
    assert moved.ok
    assert await used() == before
    await bounded.recounted()
    assert await used() == before
    assert (await bounded.delete("globex-two", "s.txt")).ok
    assert await used() < before - 50_000


async def test_empty_files_and_folders_are_not_free(bounded: BoundedHub) -> None:
    await bounded.at("globex-two").call("core/fs.listDir", {"path": "."}, request_id="work")
    before = (await bounded.stored("globex-two"))["workspaces", ""].used_bytes
    args = {"path": "deep/er/and/deeper/empty.txt", "text": ""}
    assert (await bounded.at("globex-two").call(WRITE, args, request_id="work")).ok
    after = (await bounded.stored("globex-two"))["workspaces", ""].used_bytes
    assert after - before == 5 * 4 * KIB
    # Also a read makes the folder of a new request.
    await bounded.at("globex-two").call("core/fs.listDir", {"path": "."}, request_id="never-seen")
    assert (await bounded.stored("globex-two"))["workspaces", ""].used_bytes - after == 4 * KIB
    assert (await bounded.delete("globex-two", "deep")).ok
    assert (await bounded.stored("globex-two"))["workspaces", ""].used_bytes == before + 4 * KIB


@pytest.mark.promise("storage.bounds")
async def test_principals_of_a_tenant_share_its_bound(bounded: BoundedHub) -> None:
    assert (await bounded.write("acme-one", "a.txt", 250_000)).ok
    refused = (await bounded.write("acme-two", "b.txt", 250_000)).error
    assert refused.details["limit"] == "tenants.max_workspace_bytes"
    assert "tenant acme" in refused.message
    await bounded.recounted()
    assert (await bounded.stored("acme-two"))["workspaces", "acme"].used_bytes > 250_000
    assert (await bounded.delete("acme-one", "a.txt")).ok
    await bounded.recounted()
    assert (await bounded.write("acme-two", "b.txt", 250_000)).ok
    assert (await bounded.delete("acme-two", "b.txt")).ok


async def test_memory_and_artifacts_have_the_bounds_of_the_policy_too(bounded: BoundedHub) -> None:
    remember = "core/memory.write"
    assert (await bounded.at("globex-bot").call(remember, {"text": "m" * 1_200})).ok
    refused = (await bounded.at("globex-bot").call(remember, {"text": "m" * 1_200})).error
    assert (refused.details["limit"], refused.details["quota_bytes"]) == ("storage.memory_bytes", 2_000)
    assert (await bounded.at("acme-one").call(remember, {"text": "m" * 2_000})).ok
    refused = (await bounded.at("acme-two").call(remember, {"text": "m" * 2_000})).error
    assert refused.details["limit"] == "tenants.max_memory_bytes"
    await bounded.upload("globex-bot", 30_000)
    large = await failed(bounded.upload("globex-bot", 30_000))
    assert (large.code, large.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert large.metadata["limit"] == "storage.artifact_bytes"


async def test_the_soft_bound_is_told_in_evidence_before_the_hard_one_refuses(bounded: BoundedHub) -> None:
    quiet = await bounded.write("globex-bot", "soft/a.txt", 10_000)
    assert not [each for each in quiet.evidence if each.ref == "storage:workspaces"]
    near = await bounded.write("globex-bot", "soft/a.txt", 60_000)
    (notice,) = [each for each in near.evidence if each.ref == "storage:workspaces"]
    assert "of at most 100,000 bytes" in notice.summary
    read = await bounded.at("globex-bot").call("core/fs.readText", {"path": "soft/a.txt"}, request_id="work")
    assert not [each for each in read.evidence if each.ref == "storage:workspaces"]
    assert (await bounded.delete("globex-bot", "soft")).ok


async def test_a_command_is_ended_when_the_workspace_is_full_and_what_it_wrote_counts(bounded: BoundedHub) -> None:
    endless = {"argv": ["split", "-b", "1000", "-a", "6", "/dev/zero", "part"], "timeoutS": 60}
    result = await bounded.at("globex-two").call("core/exec.run", endless, request_id="full", timeout_s=120.0)
    assert result.error.kind == error_pb2.ERROR_KIND_BUDGET_EXCEEDED, result.error.message
    assert result.error.details["limit"] == "storage.workspace_bytes"
    assert "killed" in result.error.message
    await bounded.recounted()
    assert (await bounded.stored("globex-two"))["workspaces", ""].used_bytes > 300_000
    refused = (await bounded.write("globex-two", "c.txt", 10)).error
    assert refused.details["limit"] == "storage.workspace_bytes"
    listing = await bounded.at("globex-two").call("core/fs.listDir", {"path": "."}, request_id="full")
    assert listing.ok
    removed = await bounded.at("globex-two").call(
        DELETE,
        {"path": f"partaaaaa{json.loads(listing.result_json)['entries'][0]['name'][-1]}", "confirm": True},
        request_id="full",
    )
    assert removed.ok


async def test_a_command_writes_no_larger_file_than_the_caller_may_store(bounded: BoundedHub) -> None:
    large = {"argv": ["dd", "if=/dev/zero", "of=large", "bs=1000", "count=1000"]}
    result = await bounded.at("globex-bot").call("core/exec.run", large, request_id="large")
    assert json.loads(result.result_json)["exitCode"] != 0
    await bounded.recounted()
    assert (await bounded.stored("globex-bot"))["workspaces", ""].used_bytes <= 100_000 + 8 * KIB
    removed = await bounded.at("globex-bot").call(DELETE, {"path": "large", "confirm": True}, request_id="large")
    assert removed.ok


@pytest.mark.promise("storage.bounds")
async def test_whoami_shows_what_is_used_and_what_may_be(bounded: BoundedHub) -> None:
    shown = json.loads((await bounded.types("acme-one", "auth", "whoami", "--json")).output)
    assert {(use["kind"], use["tenant"], use["limit"], use["max_bytes"]) for use in shown["storage"]} == {
        ("workspaces", "", "storage.workspace_bytes", 300_000),
        ("artifacts", "", "artifacts.quota_bytes", 10 * 1024**3),
        ("memory", "", "memory.max_bytes", 64 * 1024**2),
        ("workspaces", "acme", "tenants.max_workspace_bytes", 400_000),
        ("memory", "acme", "tenants.max_memory_bytes", 3_000),
    }
    text = (await bounded.types("acme-one", "auth", "whoami")).output
    assert "workspaces" in text
    assert "memory of tenant acme" in text
    plain = await bounded.hub.stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=bounded.at("ops").metadata)
    assert not plain.storage


async def test_metrics_show_what_is_stored_refused_and_left(bounded: BoundedHub, tmp_path: Path) -> None:
    await bounded.write("globex-two", "c.txt", 400_000)
    await bounded.recounted()
    text = bounded.hub.hub.observing.metrics.exposition().decode()
    assert 'toolhub_storage_used_bytes{kind="workspaces"}' in text
    assert 'toolhub_storage_principals{bound="hard"}' in text
    assert 'toolhub_storage_refused_total{limit="storage.workspace_bytes"}' in text
    for folder in ("data", "workspaces", "artifacts"):
        assert f'toolhub_disk_free_bytes{{folder="{folder}"}}' in text
        assert f'toolhub_disk_reserve_bytes{{folder="{folder}"}}' in text


async def test_counts_survive_a_restart_and_a_hub_without_them_counts_anew(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        await hub.value(WRITE, {"path": "a.txt", "text": "x" * 50_000}, request_id="r")
        counted = hub.hub.storage.usage.bytes_of_principal("local")
        assert counted == 13 * 4_096 + 2 * 4_096
    async with running_hub(tmp_path) as hub:
        assert hub.hub.storage.usage.bytes_of_principal("local") == counted
    for file in (tmp_path / "hub" / "workspaces" / ".usage").iterdir():
        file.unlink()
    async with running_hub(tmp_path) as hub:
        await hub.hub.storage.watch.round()
        assert hub.hub.storage.usage.bytes_of_principal("local") == counted
