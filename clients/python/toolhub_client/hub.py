"""What an agent does with a hub: find tools, call them, follow jobs."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import orjson

from toolhub.v1 import call_pb2, job_pb2, job_service_pb2, plan_pb2, tool_pb2, tool_service_pb2
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_client import artifacts, jobs
from toolhub_client.answer import Answer, Chunk, Progress
from toolhub_client.context import Context

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceAsyncStub
    from toolhub.v1.job_service_pb2_grpc import JobServiceAsyncStub
    from toolhub.v1.tool_service_pb2_grpc import ToolServiceAsyncStub

EXPORT_FORMATS = {
    "openai": tool_service_pb2.EXPORT_FORMAT_OPENAI,
    "anthropic": tool_service_pb2.EXPORT_FORMAT_ANTHROPIC,
    "mcp": tool_service_pb2.EXPORT_FORMAT_MCP,
}


class Hub:
    """A connected hub; `connect` makes one. The generated stubs stand beside for what has no method here."""

    def __init__(self, channel: grpc.aio.Channel, *, metadata: Sequence[tuple[str, str]], context: Context) -> None:
        self.tools: ToolServiceAsyncStub = ToolServiceStub(channel)
        self.jobs: JobServiceAsyncStub = JobServiceStub(channel)
        self.artifacts: ArtifactServiceAsyncStub = ArtifactServiceStub(channel)
        self.metadata = tuple(metadata)
        """Sent with every RPC: the credential."""
        self.context = context

    async def invoke(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str = "",
        plan_digest: str = "",
        approval_id: str = "",
        context: Context | None = None,
    ) -> Answer:
        """Make one call. A refused or failed call is an Answer; `unwrap()` makes it an exception.

        Raises AioRpcError when the RPC itself failed: no credential, hub away or overloaded.
        """
        request = tool_service_pb2.InvokeRequest(
            intent=_intent(tool, args, purpose, idempotency_key),
            context=(context or self.context).to_proto(),
            plan_digest=plan_digest,
            approval_id=approval_id,
        )
        return Answer((await self.tools.Invoke(request, metadata=self.metadata)).result)

    async def dry_run(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        context: Context | None = None,
    ) -> plan_pb2.Plan:
        """What `invoke` would do. Its `plan_digest`, given to `invoke`, commits exactly that."""
        request = tool_service_pb2.InvokeRequest(
            intent=_intent(tool, args, purpose, ""),
            context=(context or self.context).to_proto(),
            mode=call_pb2.INVOKE_MODE_DRY_RUN,
        )
        return (await self.tools.Invoke(request, metadata=self.metadata)).plan

    async def invoke_stream(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str = "",
        plan_digest: str = "",
        approval_id: str = "",
        context: Context | None = None,
    ) -> AsyncIterator[Progress | Chunk | Answer]:
        """Make one call and see it happen; the Answer comes last. Leaving the loop early cancels the call."""
        request = tool_service_pb2.InvokeStreamRequest(
            intent=_intent(tool, args, purpose, idempotency_key),
            context=(context or self.context).to_proto(),
            plan_digest=plan_digest,
            approval_id=approval_id,
        )
        call = self.tools.InvokeStream(request, metadata=self.metadata)
        try:
            async for response in call:
                match response.WhichOneof("event"):
                    case "progress":
                        yield response.progress
                    case "chunk":
                        yield response.chunk
                    case "result":
                        yield Answer(response.result)
        finally:
            call.cancel()

    async def list_tools(self, **where: Any) -> AsyncIterator[tool_pb2.ToolSpec]:
        """Every tool the caller could be allowed, page by page. `where` are fields of ToolFilter."""
        request = tool_service_pb2.ListToolsRequest(filter=tool_pb2.ToolFilter(**where))
        while True:
            page = await self.tools.ListTools(request, metadata=self.metadata)
            for tool in page.tools:
                yield tool
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def search(self, query: str, *, limit: int = 10, **where: Any) -> Sequence[tool_service_pb2.SearchHit]:
        """The best hits, at most `limit`. `where` are fields of ToolFilter."""
        request = tool_service_pb2.SearchToolsRequest(query=query, page_size=limit, filter=tool_pb2.ToolFilter(**where))
        return (await self.tools.SearchTools(request, metadata=self.metadata)).hits

    async def get_tool(self, name: str) -> tool_pb2.ToolSpec:
        """One tool. Raises AioRpcError NOT_FOUND."""
        request = tool_service_pb2.GetToolRequest(name=name)
        return (await self.tools.GetTool(request, metadata=self.metadata)).tool

    async def export(self, form: str = "openai", **where: Any) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """Definitions for a model (`openai`, `anthropic`, `mcp`), and each exported name's tool."""
        request = tool_service_pb2.ExportToolsRequest(format=EXPORT_FORMATS[form], filter=tool_pb2.ToolFilter(**where))
        answer = await self.tools.ExportTools(request, metadata=self.metadata)
        return orjson.loads(answer.tools_json), dict(answer.names)

    async def submit_job(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str = "",
        plan_digest: str = "",
        approval_id: str = "",
        context: Context | None = None,
    ) -> job_pb2.Job:
        """Have a call made as a job, which goes on without its caller. The same key gives the same job.

        A refused call is a job that has FAILED. Raises AioRpcError when the RPC itself failed.
        """
        request = job_service_pb2.SubmitJobRequest(
            intent=_intent(tool, args, purpose, idempotency_key),
            context=(context or self.context).to_proto(),
            plan_digest=plan_digest,
            approval_id=approval_id,
        )
        return (await self.jobs.SubmitJob(request, metadata=self.metadata)).job

    def watch_job(
        self, job_id: str, *, after_sequence: int = 0, attempts: int = 16
    ) -> AsyncIterator[job_pb2.JobStatus]:
        """Every status of a job to its final one, across broken connections (`attempts` in a row at most)."""
        return jobs.watch(self.jobs, job_id, after_sequence=after_sequence, metadata=self.metadata, attempts=attempts)

    async def job_answer(self, job_id: str) -> Answer:
        """Wait for a job's end and give its result."""
        async for status in self.watch_job(job_id):
            if status.state in jobs.FINAL_STATES:
                return Answer(status.result)
        raise RuntimeError("a watched job ended without a final state")

    async def cancel_job(self, job_id: str, *, reason: str = "") -> job_pb2.JobStatus:
        """Ask a job to stop; the status says whether it already has."""
        request = job_service_pb2.CancelJobRequest(job_id=job_id, reason=reason)
        return (await self.jobs.CancelJob(request, metadata=self.metadata)).status

    async def put_artifact(
        self,
        content: bytes | Path | AsyncIterable[bytes],
        *,
        name: str = "",
        media_type: str = "",
    ) -> artifacts.Artifact:
        """Store bytes, a file or a stream of chunks; arguments name it as `{"$artifact": artifact.artifact_id}`.

        Raises AioRpcError; nothing is kept then.
        """
        task_id = self.context.task_id
        return await artifacts.put(
            self.artifacts, content, name=name, media_type=media_type, task_id=task_id, metadata=self.metadata
        )

    def read_artifact(self, artifact_id: str, *, attempts: int = 8) -> AsyncIterator[bytes]:
        """Its bytes in chunks, across broken connections (`attempts` in a row at most), compared with its digest.

        Raises AioRpcError, DigestMismatch before the last chunk.
        """
        return artifacts.read(self.artifacts, artifact_id, metadata=self.metadata, attempts=attempts)

    async def get_artifact(self, artifact_id: str) -> bytes:
        """Its bytes at once; for large ones `read_artifact`. Raises as that."""
        return b"".join([chunk async for chunk in self.read_artifact(artifact_id)])


def _intent(tool: str, args: Mapping[str, Any] | None, purpose: str, idempotency_key: str) -> call_pb2.ToolIntent:
    return call_pb2.ToolIntent(
        tool=tool, args_json=orjson.dumps(args or {}), purpose=purpose, idempotency_key=idempotency_key
    )
