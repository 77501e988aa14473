"""A hub whose sources are a real n8n: the same server four times, as operators may know it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.acceptance.n8n_workflows import TAG
from tests.acceptance.real_n8n import TOKEN, TOKEN_HEADER, RealN8n
from tests.hub import RunningHub, running_hub
from tests.rpc.real_servers import write_sources
from toolhub.v1 import error_pb2, job_pb2, result_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_state_pb2 import JobState

POLICY: Final = """
extends: none
grants:
  - principals: ["*"]
    capabilities: ["n8n:*"]
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
SETTLED_S: Final = 60.0
JOB_S: Final = 120.0
ASYNC: Final[Mapping[str, Any]] = {"mode": "async"}


def sources(n8n: RealN8n, url: str = "") -> dict[str, dict[str, Any]]:
    """`flows`: with a key and all that is known. `blind`: webhooks alone. `locked`: with the wrong token. `found`:
    what n8n itself says. `url`: another way to the same server."""
    ids = n8n.workflows
    flows = {
        "last": {"webhook": "hub-last", "workflow_id": ids["hub-last"]},
        "code": {"webhook": "hub-code", "input_schema": _SUM},
        "by_id": {"workflow_id": ids["hub-code"]},
        "respond": {"webhook": "hub-wait", "workflow_id": ids["hub-wait"]},
        "slow": {"webhook": "own-slow", "workflow_id": ids["own-slow"]},
        "telling": {"webhook": "own-telling", "headers": {TOKEN_HEADER: TOKEN}},
        "started": {"webhook": "hub-immediate"},
        "started_id": {"webhook": "hub-immediate-id", **ASYNC},
        "work": {"webhook": "hub-async", "workflow_id": ids["hub-async"], **ASYNC},
        "accepts_late": {"webhook": "own-accepts-late", "workflow_id": ids["own-accepts-late"], **ASYNC},
        "many": {"webhook": "own-many", **ASYNC},
        "files": {"webhook": "own-filing", **ASYNC},
        "fails_late": {"webhook": "own-fails-late", **ASYNC},
        "fails_last": {"webhook": "hub-error-lastNode", "workflow_id": ids["hub-error-lastNode"]},
        "fails_code": {"webhook": "hub-error-code", "workflow_id": ids["hub-error-code"]},
        "fails_silently": {"webhook": "hub-error-responseNode", "workflow_id": ids["hub-error-responseNode"]},
        "business": {"webhook": "own-business", "fails_when": [{"at": "/ok", "equals": False, "message": "/why"}]},
        "locked": {"webhook": "hub-auth", "headers": {TOKEN_HEADER: TOKEN}},
        "once": {"webhook": "own-once", "deduplicates": True},
    }
    blind = {
        "nowhere": {"webhook": "no-such-path"},
        "inactive": {"webhook": "hub-inactive"},
        "wrong_method": {"webhook": "hub-last", "method": "GET"},
        "slow": {"webhook": "hub-wait"},
        "fails_silently": {"webhook": "hub-error-responseNode"},
    }
    known = {"kind": "n8n", "url": url or n8n.url}
    return {
        "flows": {**known, "api_key": n8n.api_key, "workflows": flows},
        "blind": {**known, "workflows": blind},
        "locked": {**known, "headers": {TOKEN_HEADER: "wrong"}, "workflows": {"auth": {"webhook": "hub-auth"}}},
        "found": {**known, "api_key": n8n.api_key, "discover": {"tags": [TAG]}},
    }


_SUM: Final = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@asynccontextmanager
async def n8n_hub(home: Path, n8n: RealN8n, url: str = "") -> AsyncIterator[RunningHub]:
    """In this process, once each source has been read."""
    write_sources(home, sources(n8n, url))
    async with running_hub(home, policy=POLICY) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=SETTLED_S)
        yield hub


def kind(result: result_pb2.ToolResult) -> str:
    """`OK`, or how it failed."""
    if result.ok:
        return "OK"
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


async def at_work(hub: RunningHub, job_id: str) -> None:
    """Wait until n8n has reported the state of its execution."""
    watch = hub.jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
    async for answer in watch:
        if state(answer.status) == "RUNNING" and answer.status.progress.message:
            watch.cancel()
            return
        assert not answer.status.HasField("result"), answer.status


async def history(hub: RunningHub, job_id: str) -> list[job_pb2.JobStatus]:
    """What a watch sends, from start to end."""
    watch = hub.jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
    return [answer.status async for answer in watch]


def made(end: job_pb2.JobStatus) -> Any:
    """The result of a job that must have succeeded."""
    assert state(end) == "SUCCEEDED", end.error
    return json.loads(end.result.result_json)


def state(status: job_pb2.JobStatus) -> str:
    return JobState.Name(status.state).removeprefix("JOB_STATE_")


def evidence(result: result_pb2.ToolResult) -> dict[str, str]:
    """All attributes of all proofs."""
    return {name: value for proof in result.evidence for name, value in proof.attributes.items()}
