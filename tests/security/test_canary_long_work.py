"""A canary goes through jobs, approvals and artifacts, and is looked for wherever long work leaves traces.

Doors: arguments, progress, refusals and crashes of a tool, comments, reasons, purposes. Exits: logs, spans, metrics,
the audit files, job events, lists, approvals, errors, the store. A hub keeps the arguments and the results of jobs in
the clear, for it has to run the ones and give back the others: the last test says where, and nowhere else.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import Client
from tests.security.test_canary_wire import CANARY, SHAPED, HubOutput, hub_output, spellings, trailers_of
from toolhub.v1 import approval_service_pb2, artifact_service_pb2, job_service_pb2
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

__all__ = ["hub_output"]
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
rules:
  - {id: asks, effect: REQUIRE_APPROVAL, tools: [acme/asked.work], reason: Somebody should look.}
"""
RESULT = f"r3s{secrets.token_hex(12)}"
"""In the answer of the tool, under a telling name: its owner's, and nobody else's to see."""


class LeakyJob(Tool["LeakyJob.In", "LeakyJob.Out"]):
    """Long work that reports its secrets at every step."""

    name = "acme/leaks.work"
    description = "Work long and talk about it."

    class In(ToolInput, frozen=True):
        how: str
        api_key: str = ""

    class Out(ToolOutput, frozen=True):
        token: str

    async def run(self, args: In, context: ToolContext) -> Out:
        leak = f"login with password={args.api_key} and {SHAPED}"
        context.sink.progress(Progress(1, 2, f"token={args.api_key}", leak))
        context.sink.chunk(Chunk(leak.encode()))
        if args.how == "crash":
            raise RuntimeError(leak)
        if args.how == "refuse":
            raise refuse(ErrorKind.EXECUTION_ERROR, leak, answer={"token": args.api_key})
        context.sink.progress(Progress(2, 2, "", leak))
        return self.Out(token=RESULT)


class LeakyApprovedJob(LeakyJob):
    name = "acme/asked.work"


@asynccontextmanager
async def a_hub(tmp_path: Path, **settings: Any) -> AsyncIterator[RunningHub]:
    chosen = {
        "logs": {"level": "debug", "calls": True},
        "tracing": {"otlp_endpoint": "http://127.0.0.1:9"},
        **settings,
    }
    async with running_hub(tmp_path, policy=POLICY, settings=chosen, tools=[LeakyJob(), LeakyApprovedJob()]) as running:
        yield running


async def work(hub: RunningHub, hub_output: HubOutput) -> None:
    """Jobs of every end; what others than the owner of a result may see of them is kept."""
    client = Client(hub)
    for tool in (LeakyJob.name, LeakyApprovedJob.name):
        for how in ("well", "crash", "refuse"):
            asked = await client.submit(
                tool, {"how": how, "apiKey": CANARY}, purpose=f"log in with password={CANARY}", labels={"token": CANARY}
            )
            hub_output.keep(f"accepted {tool} {how}", decoded(asked.status))
            await decide(hub, hub_output, asked.approval_id)
            for entry in await client.ended(asked.job_id):
                hub_output.keep(f"entry of {tool} {how}", decoded(entry))
    for wrong in ({"how": 5, "apiKey": CANARY}, {"apiKey": CANARY, "secret": CANARY}):
        job = await client.submit(LeakyJob.name, wrong)
        hub_output.keep("refused", decoded(job.status))
    hub_output.keep("jobs", await client.page())


async def decide(hub: RunningHub, hub_output: HubOutput, approval_id: str) -> None:
    """By the store: nobody decides on their own, and here is but one."""
    if not approval_id:
        return
    stub: Any = ApprovalServiceStub(hub.channel)
    asked = approval_service_pb2.GetApprovalRequest(approval_id=approval_id)
    hub_output.keep("asked", (await stub.GetApproval(asked, timeout=CALL_TIMEOUT_S)).approval)
    await approve(hub, approval_id, f"the token={CANARY} is {SHAPED}")
    hub_output.keep("decided", (await stub.GetApproval(asked, timeout=CALL_TIMEOUT_S)).approval)
    hub_output.keep("approvals", await stub.ListApprovals(approval_service_pb2.ListApprovalsRequest()))


async def approve(hub: RunningHub, approval_id: str, comment: str) -> None:
    from toolhub_service.domain.approval import ApprovalState
    from toolhub_service.domain.call import Principal, Role

    judge = Principal("judge", frozenset({Role.APPROVER}))
    await hub.hub.long_work.approvals.decide(judge, approval_id, ApprovalState.APPROVED, comment)


def decoded(status: Any) -> Any:
    """An entry without what its owner is owed: the value, and what is for the caller alone."""
    shown = type(status)()
    shown.CopyFrom(status)
    if shown.HasField("result"):
        shown.result.ClearField("result_json")
    return shown


@pytest.mark.promise("secrets.nowhere")
async def test_a_canary_in_long_work_is_disclosed_nowhere(tmp_path: Path, hub_output: HubOutput) -> None:
    async with a_hub(tmp_path) as hub:
        await work(hub, hub_output)
        assert await hub_output.leaks(hub, CANARY, SHAPED, RESULT) == []


async def test_a_canary_in_what_is_asked_of_jobs_and_artifacts_is_disclosed_nowhere(
    tmp_path: Path, hub_output: HubOutput
) -> None:
    async with a_hub(tmp_path) as hub:
        jobs, approvals, artifacts = (
            hub.jobs,
            ApprovalServiceStub(hub.channel),
            ArtifactServiceStub(hub.channel),
        )
        header = artifact_service_pb2.ArtifactHeader(
            name=f"password={CANARY}.txt", media_type=f"text/plain; k={SHAPED}"
        )
        upload = artifacts.WriteArtifact(iter([artifact_service_pb2.WriteArtifactRequest(header=header)]))
        kept = (await upload).artifact
        client = Client(hub)
        job = await client.submit(LeakyJob.name, {"how": "well", "apiKey": {"$artifact": kept.artifact_id}})
        await client.cancel(job.job_id, f"because of password={CANARY} and {SHAPED}")
        await client.ended(job.job_id)
        asks: tuple[Callable[[], Any], ...] = (
            lambda: jobs.GetJob(job_service_pb2.GetJobRequest(job_id=SHAPED)),
            lambda: jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=SHAPED, reason=f"token={CANARY}")),
            lambda: jobs.ListJobs(job_service_pb2.ListJobsRequest(page_token=SHAPED)),
            lambda: approvals.GetApproval(approval_service_pb2.GetApprovalRequest(approval_id=SHAPED)),
            lambda: artifacts.GetArtifact(artifact_service_pb2.GetArtifactRequest(artifact_id=SHAPED)),
        )
        for ask in asks:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask()
            hub_output.answers.append(("status", trailers_of(refused.value)))
        result = await hub.invoke(LeakyJob.name, {"how": "well", "apiKey": {"$artifact": SHAPED}})
        hub_output.keep("reference", result.error)
        assert await hub_output.leaks(hub, CANARY, SHAPED) == []


async def test_embedded_store_holds_a_secret_in_arguments_and_results_of_jobs_alone(
    tmp_path: Path, hub_output: HubOutput
) -> None:
    """What docs/threat-model.md says of hub.db, and no more."""
    async with a_hub(tmp_path) as hub:
        await work(hub, hub_output)
        rows = list(stored(Paths(hub.hub.settings).stores))
    held = {(table, column) for table, column, data in rows if any(spelt in data for spelt in spellings(CANARY))}
    assert held <= {("job_args", "args"), ("jobs", "frame")}, "arguments, and the labels of the context"
    results = {(table, column) for table, column, data in rows if any(spelt in data for spelt in spellings(RESULT))}
    assert results == {("job_entries", "status")}
    shaped = {(table, column) for table, column, data in rows if any(spelt in data for spelt in spellings(SHAPED))}
    assert shaped == set(), "nothing a tool tells is kept with a secret in it"


def stored(file: Path) -> Any:
    """(table, column, bytes) of every cell."""
    import sqlite3

    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            for row in cursor:
                for name, value in zip(names, row, strict=True):
                    yield table, name, value if isinstance(value, bytes) else str(value).encode()
