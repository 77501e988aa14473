"""A whole hub in the process of the test: real server, real pipeline, real audit log, on a free port of loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from toolhub.v1 import call_pb2, job_pb2, job_service_pb2, plan_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.settings.document import Settings
from toolhub_service.tools.tool import Tool, spec_of

OPEN_POLICY = """
extends: none
grants:
  - principals: ["*"]
    capabilities: [read:fs, write:fs, execute:command, network, read:web, danger:destructive]
roles:
  - principals: [local]
    roles: [agent, operator, approver, auditor]
"""
"""Everything a test may want to do, but no egress and no command: those need their own lines."""

QUIET: Mapping[str, Any] = {
    "server": {"listen": "127.0.0.1:0", "drain_s": 0.2, "mcp": {"enabled": False}},
    "metrics": {"listen": ""},
    "logs": {"level": "error", "format": "json"},
}
"""What every hub of a test starts from: a free port, no metrics port, few words."""

CALL_TIMEOUT_S = 60.0
"""Longer than any call here takes, so that a hub that hangs fails its test by name."""


@dataclass(slots=True)
class RunningHub:
    """A hub that serves, and a client of it. Calls raise grpc.aio.AioRpcError like every client."""

    hub: Hub
    address: str
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        return ToolServiceStub(self.channel)

    @property
    def registry(self) -> Any:
        return RegistryServiceStub(self.channel)

    @property
    def audit(self) -> Any:
        return AuditServiceStub(self.channel)

    @property
    def jobs(self) -> Any:
        return JobServiceStub(self.channel)

    async def invoke(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        metadata: Sequence[tuple[str, str]] = (),
        **fields: Any,
    ) -> result_pb2.ToolResult:
        """One call; further keywords are those of `request`."""
        response = await self.stub.Invoke(request(tool, args, **fields), timeout=timeout_s, metadata=tuple(metadata))
        assert response.WhichOneof("outcome") == "result"
        return response.result  # type: ignore[no-any-return]

    async def submit(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        approval_id: str = "",
        **fields: Any,
    ) -> job_pb2.Job:
        """The same call as a job; further keywords are those of `request`."""
        call = request(tool, args, **fields)
        asked = job_service_pb2.SubmitJobRequest(
            intent=call.intent, context=call.context, plan_digest=call.plan_digest, approval_id=approval_id
        )
        response = await self.jobs.SubmitJob(asked, timeout=CALL_TIMEOUT_S, metadata=tuple(metadata))
        return response.job  # type: ignore[no-any-return]

    async def watched(
        self, job_id: str, after_sequence: int = 0, *, metadata: Sequence[tuple[str, str]] = ()
    ) -> list[job_pb2.JobStatus]:
        """What a watch of the job tells until its end."""
        asked = job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after_sequence)
        watch = self.jobs.WatchJob(asked, timeout=CALL_TIMEOUT_S, metadata=tuple(metadata))
        return [answer.status async for answer in watch]

    async def plan(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> plan_pb2.Plan:
        """A dry run of the same call."""
        asked = request(tool, args, mode=call_pb2.INVOKE_MODE_DRY_RUN, **fields)
        response = await self.stub.Invoke(asked, timeout=CALL_TIMEOUT_S)
        assert response.WhichOneof("outcome") == "plan"
        return response.plan  # type: ignore[no-any-return]

    async def value(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        """The JSON of a call that must succeed."""
        result = await self.invoke(tool, args, **fields)
        assert result.ok, f"{result.error.message} {result.error.details}"
        return json.loads(result.result_json)

    async def events(self, **where: Any) -> list[ChainedEvent]:
        """What the audit log remembers, oldest first; keywords are fields of EventFilter."""
        return list(await self.hub.audit.read(EventFilter(**where), after=None, limit=1_000))

    def workspace(self, request_id: str, principal: str = "local") -> Path:
        """The folder that calls with this request id share; it exists once one of them has used it."""
        return Paths(self.hub.settings).workspaces / principal / request_id


def request(
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    message: type[Message] = pb.InvokeRequest,
    args_json: bytes | None = None,
    args_struct: Mapping[str, Any] | None = None,
    purpose: str = "a test",
    idempotency_key: str = "",
    expected_tool_digest: str = "",
    mode: int = call_pb2.INVOKE_MODE_UNSPECIFIED,
    plan_digest: str = "",
    result_encoding: int = call_pb2.RESULT_ENCODING_UNSPECIFIED,
    budget: Mapping[str, Any] | None = None,
    **context: Any,
) -> Any:
    """An InvokeRequest (or `message`, which has the same fields); further keywords are fields of ExecContext."""
    intent = call_pb2.ToolIntent(
        tool=tool, purpose=purpose, idempotency_key=idempotency_key, expected_tool_digest=expected_tool_digest
    )
    if args_struct is not None:
        intent.args_struct.update(args_struct)
    else:
        intent.args_json = json.dumps(args or {}).encode() if args_json is None else args_json
    return message(
        intent=intent,
        context=call_pb2.ExecContext(budget=_budget(**budget) if budget else None, **context),
        mode=mode,
        plan_digest=plan_digest,
        result_encoding=result_encoding,
    )


def _budget(*, timeout_s: float | None = None, **fields: int) -> call_pb2.CallBudget:
    timeout = None if timeout_s is None else Duration(nanos=int(timeout_s * 1e9) % 10**9, seconds=int(timeout_s))
    return call_pb2.CallBudget(timeout=timeout, **fields)


def settings_of(tmp_path: Path, settings: Mapping[str, Any] | None = None) -> Settings:
    """Settings of a hub that keeps everything below `tmp_path`; `settings` is nested as in the YAML file."""
    data: dict[str, Any] = {"data_dir": str(tmp_path / "hub")}
    for part in (QUIET, settings or {}):
        for name, value in part.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, Mapping) else value
    return msgspec.convert(data, Settings, strict=False)


@asynccontextmanager
async def running_hub(
    tmp_path: Path,
    *,
    policy: str = "",
    settings: Mapping[str, Any] | None = None,
    tools: Sequence[Tool[Any, Any, Any]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> AsyncIterator[RunningHub]:
    """Start, serve, drain and close. `policy` is the text of policy.yaml (empty: the starter policy); `tools` are
    instances offered besides the built-in ones."""
    chosen = settings_of(tmp_path, settings)
    hub = await open_hub(chosen)
    if policy:
        Paths(chosen).policy.touch(0o600)  # a hub reads none that others may write, whatever the umask of a test
        Paths(chosen).policy.write_text(policy)
    change = hub.policy_file.load()
    assert change.applied, change.problem
    for tool in tools:
        hub.toolbox.adapter._tools[tool.name] = tool
        hub.toolbox.catalog.register(spec_of(tool, source="custom"))
    await hub.start()
    address = chosen.server.listen if chosen.server.listen.startswith("unix") else f"127.0.0.1:{hub.server.port}"
    try:
        async with channel_to(address, credentials) as channel:
            yield RunningHub(hub, address, channel)
    finally:
        await hub.close()


def channel_to(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel of its own connection: never one that grpc shares with another test's."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)
