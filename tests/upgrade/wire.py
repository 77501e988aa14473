"""A client of a hub of any version, by the contract alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from toolhub.v1 import approval_service_pb2 as approvals_pb
from toolhub.v1 import artifact_service_pb2 as artifacts_pb
from toolhub.v1 import audit_service_pb2 as audit_pb
from toolhub.v1 import call_pb2, tool_pb2, tool_service_pb2
from toolhub.v1 import job_service_pb2 as jobs_pb
from toolhub.v1 import registry_service_pb2 as registry_pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

TIMEOUT_S = 60.0
APPROVE, REJECT = 1, 2


def as_json(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


@dataclass(frozen=True, slots=True)
class Client:
    """One principal at a hub; answers are those of the contract, as JSON. Calls raise grpc.aio.AioRpcError."""

    channel: grpc.aio.Channel
    key: str

    async def call(self, stub: Any, method: str, message: Message) -> dict[str, Any]:
        answer = await getattr(stub(self.channel), method)(message, metadata=self._metadata, timeout=TIMEOUT_S)
        return as_json(answer)

    async def invoke(self, tool: str, *, approval_id: str = "", **words: Any) -> dict[str, Any]:
        """The result of one call."""
        intent, context = _asked(tool, **words)
        asked = tool_service_pb2.InvokeRequest(intent=intent, context=context, approval_id=approval_id)
        result: dict[str, Any] = (await self.call(ToolServiceStub, "Invoke", asked))["result"]
        return result

    async def submit(self, tool: str, **words: Any) -> dict[str, Any]:
        """The job as it was accepted."""
        intent, context = _asked(tool, **words)
        asked = jobs_pb.SubmitJobRequest(intent=intent, context=context)
        job: dict[str, Any] = (await self.call(JobServiceStub, "SubmitJob", asked))["job"]
        return job

    async def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = (await self.call(JobServiceStub, "GetJob", jobs_pb.GetJobRequest(job_id=job_id)))["job"]
        return job

    async def cancel(self, job_id: str, reason: str) -> None:
        await self.call(JobServiceStub, "CancelJob", jobs_pb.CancelJobRequest(job_id=job_id, reason=reason))

    async def history(
        self, job_id: str, until: Callable[[dict[str, Any]], bool] = lambda status: False
    ) -> list[dict[str, Any]]:
        """What a watch sends until an entry fits, or to the end of the job."""
        entries: list[dict[str, Any]] = []
        asked = jobs_pb.WatchJobRequest(job_id=job_id)
        watch = JobServiceStub(self.channel).WatchJob(asked, metadata=self._metadata, timeout=TIMEOUT_S)
        async for answer in watch:
            entries.append(as_json(answer.status))
            if until(entries[-1]):
                watch.cancel()
                break
        return entries

    async def reached(self, job_id: str, state: str) -> list[dict[str, Any]]:
        entries = await self.history(job_id, lambda status: status["state"] == f"JOB_STATE_{state}")
        assert entries[-1]["state"] == f"JOB_STATE_{state}", entries[-1]
        return entries

    async def approval(self, approval_id: str) -> dict[str, Any]:
        asked = approvals_pb.GetApprovalRequest(approval_id=approval_id)
        approval: dict[str, Any] = (await self.call(ApprovalServiceStub, "GetApproval", asked))["approval"]
        return approval

    async def decide(self, approval_id: str, decision: int, **fields: Any) -> dict[str, Any]:
        asked = approvals_pb.DecideApprovalRequest(approval_id=approval_id, comment="read", **fields)
        asked.decision = decision  # type: ignore[assignment]
        approval: dict[str, Any] = (await self.call(ApprovalServiceStub, "DecideApproval", asked))["approval"]
        return approval

    async def ended(self, approval_id: str, state: str) -> dict[str, Any]:
        """The approval once it is in this state."""
        asked = approvals_pb.WatchApprovalsRequest()
        watch = ApprovalServiceStub(self.channel).WatchApprovals(asked, metadata=self._metadata, timeout=TIMEOUT_S)
        await watch.initial_metadata()
        while (approval := await self.approval(approval_id))["state"] != f"APPROVAL_STATE_{state}":
            await watch.read()
        watch.cancel()
        return approval

    async def write(self, content: bytes, **header: Any) -> dict[str, Any]:
        """Keep an artifact."""

        async def parts() -> AsyncIterator[artifacts_pb.WriteArtifactRequest]:
            yield artifacts_pb.WriteArtifactRequest(header=artifacts_pb.ArtifactHeader(**header))
            yield artifacts_pb.WriteArtifactRequest(chunk=content)

        stub: Any = ArtifactServiceStub(self.channel)
        answer = await stub.WriteArtifact(parts(), metadata=self._metadata, timeout=TIMEOUT_S)
        return as_json(answer.artifact)

    async def read(self, artifact_id: str) -> bytes:
        asked = artifacts_pb.ReadArtifactRequest(artifact_id=artifact_id)
        answers = ArtifactServiceStub(self.channel).ReadArtifact(asked, metadata=self._metadata, timeout=TIMEOUT_S)
        return b"".join([answer.chunk async for answer in answers])

    async def artifact(self, artifact_id: str) -> dict[str, Any]:
        asked = artifacts_pb.GetArtifactRequest(artifact_id=artifact_id)
        artifact: dict[str, Any] = (await self.call(ArtifactServiceStub, "GetArtifact", asked))["artifact"]
        return artifact

    async def refresh(self, source: str) -> dict[str, Any]:
        asked = registry_pb.RefreshSourcesRequest(sources=[source])
        (status,) = (await self.call(RegistryServiceStub, "RefreshSources", asked))["sources"]
        return dict(status)

    async def pins(self, source: str) -> list[dict[str, Any]]:
        """Newest first."""
        asked = registry_pb.ListPinsRequest(source=source, view=tool_pb2.TOOL_VIEW_FULL)
        return list((await self.call(RegistryServiceStub, "ListPins", asked)).get("pins", []))

    async def decide_pin(self, pin: Mapping[str, Any], decision: int) -> None:
        asked = registry_pb.DecidePinRequest(
            source=pin["source"], tool=pin["tool"], digest=pin["digest"], comment="read"
        )
        asked.decision = decision  # type: ignore[assignment]
        await self.call(RegistryServiceStub, "DecidePin", asked)

    async def found(self, query: str) -> list[dict[str, Any]]:
        """Hits of a search."""
        asked = tool_service_pb2.SearchToolsRequest(query=query, page_size=5)
        return list((await self.call(ToolServiceStub, "SearchTools", asked)).get("hits", []))

    async def events(self) -> list[dict[str, Any]]:
        """The whole audit log, in the order of the server's pages."""
        events: list[dict[str, Any]] = []
        token = ""
        while True:
            asked = audit_pb.ListEventsRequest(page_size=100, page_token=token)
            page = await self.call(AuditServiceStub, "ListEvents", asked)
            events += page.get("events", [])
            if not (token := page.get("next_page_token", "")):
                return events

    async def verified(self) -> dict[str, Any]:
        return await self.call(AuditServiceStub, "VerifyAudit", audit_pb.VerifyAuditRequest())

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)


def _asked(
    tool: str, *, text: str, purpose: str = "keep data", key: str = "", timeout_s: float = 0, **context: Any
) -> tuple[call_pb2.ToolIntent, call_pb2.ExecContext]:
    intent = call_pb2.ToolIntent(
        tool=tool, purpose=purpose, idempotency_key=key, args_json=json.dumps({"text": text}).encode()
    )
    budget = call_pb2.CallBudget(timeout=Duration(nanos=round(timeout_s * 1e9))) if timeout_s else None
    return intent, call_pb2.ExecContext(budget=budget, **context)
