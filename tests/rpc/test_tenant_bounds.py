"""What a tenant may hold, in which order jobs of tenants start, and who sees the tenant of a caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, WAIT, Principals
from tests.rpc.sample_tools import TextIn, TextOut, Waits
from tests.rpc.statuses import failed
from toolhub.v1 import artifact_service_pb2, artifact_service_pb2_grpc, error_pb2, tool_service_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.root import toolhub
from toolhub_service.tools.context import ToolContext

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY: Final = """
extends: none
tenants:
  - {name: "*", principals: [ops]}
  - name: acme
    principals: ["acme-*"]
    max_open_jobs: 4
    max_open_approvals: 1
    max_artifacts: 2
    max_artifact_bytes: 10000
  - {name: globex, principals: ["globex-*"]}
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
roles: [{principals: [ops, acme-one], roles: [agent, auditor]}]
rules: [{id: person, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Look first.}]
"""
NAMES: Final = ("acme-one", "acme-two", "globex-bot", "ops")


class RecordsOrder(Waits):
    """Waits, and remembers in which order its runs began."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.order.append(args.text)
        return await super().run(args, context)


class BoundedHub:
    """A hub with one room for jobs."""

    def __init__(self, hub: RunningHub, tool: RecordsOrder) -> None:
        self.hub, self.tool = hub, tool
        self.people = Principals(hub, names=NAMES)

    def as_(self, who: str) -> dict[str, Any]:
        return {"metadata": self.people.at(self.hub, who).metadata, "timeout": CALL_TIMEOUT_S}

    async def upload(self, who: str, size_bytes: int) -> str:
        async def parts() -> AsyncIterator[Any]:
            header = artifact_service_pb2.ArtifactHeader(name="a.bin", size_bytes=size_bytes)
            yield artifact_service_pb2.WriteArtifactRequest(header=header)
            yield artifact_service_pb2.WriteArtifactRequest(chunk=b"a" * size_bytes)

        stub = artifact_service_pb2_grpc.ArtifactServiceStub(self.hub.channel)
        return str((await stub.WriteArtifact(parts(), **self.as_(who))).artifact.artifact_id)

    async def types(self, who: str, *words: str) -> Result:
        paths = Paths(self.hub.hub.settings)
        key = self.people.at(self.hub, who).metadata[0][1].removeprefix("Bearer ")
        typed = [*words, "--address", self.hub.address, "--api-key", key]
        environment = {"TOOLHUB_DATA_DIR": str(paths.data_dir)}
        return await asyncio.to_thread(CliRunner().invoke, toolhub, typed, env=environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bounded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BoundedHub]:
    tool, settings = RecordsOrder(), {**BY_KEY, "jobs": {"max_running": 1}}
    async with running_hub(tmp_path_factory.mktemp("hub"), policy=POLICY, settings=settings, tools=[tool]) as hub:
        yield BoundedHub(hub, tool)


@pytest.mark.promise("tenants.bounds")
async def test_jobs_of_tenants_start_in_turn_and_a_tenant_s_open_ones_are_bounded(bounded: BoundedHub) -> None:
    acme, other, globex = (bounded.people.at(bounded.hub, name) for name in ("acme-one", "acme-two", "globex-bot"))
    jobs = [await acme.submit(WAIT, {"text": "a0"})]
    await asyncio.wait_for(bounded.tool.started.wait(), CALL_TIMEOUT_S)
    jobs += [await acme.submit(WAIT, {"text": f"a{number}"}) for number in (1, 2)]
    jobs.append(await other.submit(WAIT, {"text": "a3"}))
    for who in (acme, other):
        refused = await failed(who.submit(WAIT, {"text": "too many"}))
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert refused.metadata == {"limit": "tenants.max_open_jobs", "quota": "4"}
        assert "4 of tenant acme's jobs" in refused.message
        assert "Cancel one" in refused.message
    jobs.append(await globex.submit(WAIT, {"text": "g0"}))
    bounded.tool.let_go.set()
    for job, who in zip(jobs, (acme, acme, acme, other, globex), strict=True):
        await who.ended(job.job_id)
    assert bounded.tool.order == ["a0", "a1", "g0", "a2", "a3"]


@pytest.mark.promise("tenants.bounds")
async def test_a_tenant_s_open_approvals_are_bounded_and_an_equal_call_finds_the_one_that_stands(
    bounded: BoundedHub,
) -> None:
    acme, other, globex = (bounded.people.at(bounded.hub, name) for name in ("acme-one", "acme-two", "globex-bot"))
    write = "core/fs.writeText"
    asked = await acme.call(write, {"path": "a.txt", "text": "a"})
    again = await acme.call(write, {"path": "a.txt", "text": "a"})
    assert asked.error.details["approval_id"] == again.error.details["approval_id"]
    for who in (acme, other):
        refused = (await who.call(write, {"path": "b.txt", "text": "b"})).error
        assert refused.kind == error_pb2.ERROR_KIND_RATE_LIMITED
        assert dict(refused.details) == {"limit": "tenants.max_open_approvals", "quota": 1}
        assert "Wait until some are decided" in refused.message
    waits = await globex.call(write, {"path": "b.txt", "text": "b"})
    assert waits.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED


@pytest.mark.promise("tenants.bounds")
async def test_artifacts_of_a_tenant_are_bounded_in_bytes_and_in_number(bounded: BoundedHub) -> None:
    first = await bounded.upload("acme-one", 4_000)
    large = await failed(bounded.upload("acme-two", 6_000))
    assert (large.code, large.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert large.metadata == {"limit": "tenants.max_artifact_bytes", "quota_bytes": "10000", "used_bytes": "5024"}
    await bounded.upload("acme-two", 10)
    for who in ("acme-one", "acme-two"):
        many = await failed(bounded.upload(who, 10))
        assert many.metadata == {"limit": "tenants.max_artifacts", "quota": "2", "used": "2"}
        assert "Delete some" in many.message
    await bounded.upload("globex-bot", 20_000)
    stub = artifact_service_pb2_grpc.ArtifactServiceStub(bounded.hub.channel)
    await stub.DeleteArtifact(artifact_service_pb2.DeleteArtifactRequest(artifact_id=first), **bounded.as_("acme-one"))
    await bounded.upload("acme-two", 10)


async def test_a_caller_sees_its_tenant_and_the_audit_log_is_filtered_by_tenant(bounded: BoundedHub) -> None:
    for name, tenant in (("acme-two", "acme"), ("ops", "")):
        answer = await bounded.hub.stub.GetServerInfo(tool_service_pb2.GetServerInfoRequest(), **bounded.as_(name))
        assert (answer.principal, answer.tenant) == (name, tenant)
        assert (await bounded.people.at(bounded.hub, name).call("core/util.time.now")).ok
    assert (await bounded.people.at(bounded.hub, "globex-bot").call("core/util.time.now")).ok
    assert "tenant: acme\n" in (await bounded.types("acme-two", "auth", "whoami")).stdout
    tool = ("--tool", "core/util.time.now", "-o", "jsonl")
    acme = {("acme-two", "acme")}
    found = {"ops acme": acme, "ops *": {("ops", "*")}, "acme-one acme": acme, "acme-one globex": set()}
    for asked, events in found.items():
        who, tenant = asked.split()
        ran = await bounded.types(who, "audit", "query", "--tenant", tenant, "--since", "1h", *tool)
        assert {(each["principal"], each["tenant"]) for each in map(json.loads, ran.stdout.splitlines())} == events
    shown = await bounded.types("ops", "audit", "query", "--tenant", "globex", "--tool", "core/util.time.now")
    assert "  globex/globex-bot  core/util.time.now" in shown.stdout
    assert "No event matches." in (await bounded.types("ops", "audit", "query", "--tenant", "initech")).output
