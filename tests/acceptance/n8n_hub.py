"""A hub whose sources are a real n8n: the same server four times, as operators may know it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.acceptance.n8n_workflows import TAG
from tests.acceptance.real_n8n import TOKEN, TOKEN_HEADER, RealN8n
from tests.hub import RunningHub, running_hub
from tests.rpc.real_servers import write_sources
from toolhub.v1 import error_pb2, job_pb2, result_pb2
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


def sources(n8n: RealN8n) -> dict[str, dict[str, Any]]:
    """`flows`: with a key and all that is known. `blind`: webhooks alone. `locked`: with the wrong token. `found`:
    what n8n itself says."""
    ids = n8n.workflows
    flows = {
        "last": {"webhook": "hub-last", "workflow_id": ids["hub-last"]},
        "code": {"webhook": "hub-code", "input_schema": _SUM},
        "by_id": {"workflow_id": ids["hub-code"]},
        "respond": {"webhook": "hub-wait", "workflow_id": ids["hub-wait"]},
        "started": {"webhook": "hub-immediate"},
        "started_id": {"webhook": "hub-immediate-id", **ASYNC},
        "work": {"webhook": "hub-async", "workflow_id": ids["hub-async"], **ASYNC},
        "many": {"webhook": "own-many", **ASYNC},
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
    known = {"kind": "n8n", "url": n8n.url}
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
async def n8n_hub(home: Path, n8n: RealN8n) -> AsyncIterator[RunningHub]:
    """In this process, once each source has been read."""
    write_sources(home, sources(n8n))
    async with running_hub(home, policy=POLICY) as hub:
        assert await hub.hub.sourcing.sources.settled(timeout_s=SETTLED_S)
        yield hub


def kind(result: result_pb2.ToolResult) -> str:
    """`OK`, or how it failed."""
    if result.ok:
        return "OK"
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


def state(status: job_pb2.JobStatus) -> str:
    return JobState.Name(status.state).removeprefix("JOB_STATE_")


def evidence(result: result_pb2.ToolResult) -> dict[str, str]:
    """All attributes of all proofs."""
    return {name: value for proof in result.evidence for name, value in proof.attributes.items()}
