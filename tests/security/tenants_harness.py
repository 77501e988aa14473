"""A hub with two tenants, of which one has something of each kind that the contract can name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fakes.mcp_servers.scripted import Script, serving
from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, WAIT, Client, Principals
from tests.rpc.sample_tools import Waits
from tests.rpc.statuses import failure_of
from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    audit_service_pb2,
    credential_service_pb2,
    credential_service_pb2_grpc,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)

POLICY: Final = """
extends: none
tenants:
  - {name: "*", principals: [ops]}
  - {name: acme, principals: ["acme-*"], sources: [acme-crm]}
  - {name: globex, principals: ["globex-*"], sources: [globex-crm]}
grants: [{principals: ["*"], capabilities: ["mcp:*", read:fs, write:fs, read:memory, write:memory]}]
roles:
  - {principals: [acme-boss, globex-boss, nobody, ops], roles: [agent, operator, approver, auditor]}
rules:
  - {id: person, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Look first.}
  - {id: acme-has-no-clock, effect: DENY, tools: [core/util.time.now], when: principal.tenant == "acme"}
"""
NAMES: Final = ("acme-bot", "acme-boss", "globex-bot", "globex-boss", "nobody", "ops")
OUTSIDERS: Final = ("globex-boss", "nobody")
WRITE: Final = "core/fs.writeText"
SERVICES: Final = (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)
METHODS: Final = {
    f"{service.name}.{method.name}": method
    for module in SERVICES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


@dataclass(frozen=True)
class TenantResources:
    """What a request names: something of acme's, or something that never was."""

    job: str
    approval: str
    artifact: str
    tool: str
    source: str
    digest: str
    upload: str
    principal: str
    cursor: str = ""

    def blank(self, text: str) -> str:
        """A message without the names that the caller gave."""
        for name in (self.job, self.approval, self.artifact, self.tool, self.source, self.digest[:12], self.upload):
            text = text.replace(name, "…")
        return text


NEVER: Final = TenantResources(
    "job_" + "0" * 32,
    "apr_" + "0" * 32,
    "art_" + "0" * 32,
    "acme-crx/echo",
    "acme-crx",
    "0" * 64,
    "no-upload",
    "acme-b",
)


class TenantsHarness:
    """Acme has a source, a job, an approval that waits, an artifact, and calls in the log."""

    def __init__(self, hub: RunningHub, scripts: Mapping[str, Script]) -> None:
        self.hub, self.scripts = hub, scripts
        self.people = Principals(hub, names=NAMES)
        self.acme = NEVER

    def by(self, name: str) -> Client:
        return self.people.at(self.hub, name)

    async def settle(self) -> None:
        bot = self.by("acme-bot")
        called = await bot.call("acme-crm/echo", {"text": "a"}, purpose="acme's own")
        assert called.ok, called.error.message
        refused = await bot.call(WRITE, {"path": "acme.txt", "text": "a"})
        job = await bot.submit(WAIT, {"text": "acme"})
        artifact = await self._artifact()
        given = credential_service_pb2.SetCredentialRequest(source="acme-crm", value="acme-secret-0123456789")
        await credential_service_pb2_grpc.CredentialServiceStub(self.hub.channel).SetCredential(
            given, **self.as_("acme-bot")
        )
        pins = await self.hub.registry.ListPins(
            registry_service_pb2.ListPinsRequest(source="acme-crm", tool="acme-crm/echo"), **self.as_("ops")
        )
        self.acme = TenantResources(
            job.job_id,
            str(refused.error.details["approval_id"]),
            artifact,
            "acme-crm/echo",
            "acme-crm",
            pins.pins[0].digest,
            "acme-upload",
            "acme-bot",
        )

    def as_(self, who: str) -> dict[str, Any]:
        return {"metadata": self.by(who).metadata, "timeout": CALL_TIMEOUT_S}

    async def _artifact(self) -> str:
        async def parts() -> AsyncIterator[Any]:
            header = artifact_service_pb2.ArtifactHeader(name="acme.txt", size_bytes=4, upload_id="acme-upload")
            yield artifact_service_pb2.WriteArtifactRequest(header=header)
            yield artifact_service_pb2.WriteArtifactRequest(chunk=b"acme")

        stub = artifact_service_pb2_grpc.ArtifactServiceStub(self.hub.channel)
        written = await stub.WriteArtifact(parts(), **self.as_("acme-bot"))
        return str(written.artifact.artifact_id)

    def stream(self, who: str, method: str, message: Message) -> tuple[Any, type[Message]]:
        """The RPC as a stream of answers in bytes: on the wire the same, whatever kind it is."""
        described = METHODS[method]
        path = f"/{described.containing_service.full_name}/{described.name}"
        rpc: Any = self.hub.channel.unary_stream(path)
        return rpc(message.SerializeToString(), **self.as_(who)), GetMessageClass(described.output_type)

    async def first(self, who: str, method: str, message: Message) -> Message | tuple[grpc.StatusCode, str, str]:
        """The first answer, or the status with which it is refused."""
        call, answer = self.stream(who, method, message)
        try:
            read = await call.read()
            return answer.FromString(read) if read is not grpc.aio.EOF else answer()
        except grpc.aio.AioRpcError as refused:
            failed = failure_of(refused)
            return failed.code, failed.message, failed.reason
        finally:
            call.cancel()


@asynccontextmanager
async def tenants_hub(home: Path) -> AsyncIterator[TenantsHarness]:
    """Serves from `home`, once acme has its resources."""
    scripts = {name: Script() for name in ("acme-crm", "globex-crm", "common")}
    async with AsyncExitStack() as stack:
        sources = {
            name: {
                "url": await stack.enter_async_context(serving(script)),
                "tools": {"echo": {"read_only": True}},
                "auth": {"per_user": {"kind": "header", "required": False}},
            }
            for name, script in scripts.items()
        }
        (home / "hub").mkdir()
        (home / "hub" / "sources.yaml").write_text(json.dumps({"sources": sources}))
        hub = await stack.enter_async_context(running_hub(home, policy=POLICY, settings=BY_KEY, tools=[Waits()]))
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        found = TenantsHarness(hub, scripts)
        await found.settle()
        yield found
