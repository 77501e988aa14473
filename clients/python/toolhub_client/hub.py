"""What an agent does with a hub: find tools, call them, follow jobs, exchange artifacts, decide approvals."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import grpc

from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    artifact_service_pb2,
    call_pb2,
    job_pb2,
    job_service_pb2,
    tool_pb2,
    tool_service_pb2,
)
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_client import downloads, jobs, uploads
from toolhub_client.answer import Answer, Chunk, DryRun, Progress
from toolhub_client.artifacts import Artifact, OnProgress
from toolhub_client.channel import Connection, Target, target
from toolhub_client.context import (
    ApprovalFields,
    ArtifactFields,
    CallOptions,
    ConnectOptions,
    Context,
    ExportForm,
    JobFields,
    ToolFields,
    WatchedJobFields,
    refuse_unknown,
)
from toolhub_client.faces import Face, FaceName
from toolhub_client.failures import hub_error
from toolhub_client.session import Session
from toolhub_client.tool_calls import NO_OBJECT, read_tool_call, to_json, to_text
from toolhub_client.watches import OnOutage, resumed

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceAsyncStub
    from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceAsyncStub
    from toolhub.v1.audit_service_pb2_grpc import AuditServiceAsyncStub
    from toolhub.v1.job_service_pb2_grpc import JobServiceAsyncStub
    from toolhub.v1.registry_service_pb2_grpc import RegistryServiceAsyncStub
    from toolhub.v1.tool_service_pb2_grpc import ToolServiceAsyncStub

_EXPORT_FORMATS: Mapping[ExportForm, tool_service_pb2.ExportFormat.ValueType] = {
    "openai": tool_service_pb2.EXPORT_FORMAT_OPENAI,
    "openai_strict": tool_service_pb2.EXPORT_FORMAT_OPENAI_STRICT,
    "anthropic": tool_service_pb2.EXPORT_FORMAT_ANTHROPIC,
    "gemini": tool_service_pb2.EXPORT_FORMAT_GEMINI,
    "mcp": tool_service_pb2.EXPORT_FORMAT_MCP,
}
_ARGS_FORMS: Mapping[ExportForm, call_pb2.ArgsForm.ValueType] = {
    "openai": call_pb2.ARGS_FORM_OPENAI,
    "openai_strict": call_pb2.ARGS_FORM_OPENAI_STRICT,
    "anthropic": call_pb2.ARGS_FORM_ANTHROPIC,
    "gemini": call_pb2.ARGS_FORM_GEMINI,
    "mcp": call_pb2.ARGS_FORM_MCP,
}


@asynccontextmanager
async def connect(address: str | Target = "", **options: Unpack[ConnectOptions]) -> AsyncIterator[Hub]:
    """Open a channel to the hub at `address`, else TOOLHUB_ADDRESS, and close it afterwards. A Target says everything
    about address and credentials: of those nothing comes from `options` or the environment.

    It does not wait for the hub: the first call does. Raises as `toolhub_client.channel.target`, and TypeError for an
    option that there is not.
    """
    refuse_unknown(options, ConnectOptions)
    whose = address if isinstance(address, Target) else _target_of(address, options)
    connection = Connection(whose, retry_s=options.get("retry_s", 10.0), options=options.get("options", ()))
    context = options.get("context", Context())
    if not context.request_id:
        context = replace(context, request_id=os.environ.get("TOOLHUB_REQUEST_ID", "") or f"req_{uuid.uuid4().hex}")
    async with connection.channel:
        yield Hub(connection, context=context, automatic_keys=options.get("automatic_keys", False))


def _target_of(address: str, options: ConnectOptions) -> Target:
    return target(
        address,
        api_key=options.get("api_key", ""),
        ca_file=options.get("ca_file", ""),
        cert_file=options.get("cert_file", ""),
        key_file=options.get("key_file", ""),
        credentials=options.get("credentials"),
    )


class Hub:
    """A connected hub; `connect` makes one. Its methods raise HubError when an RPC fails. The generated stubs stand
    beside, with the hub's credential, for what has no method here.

    `timeout`, of every method but watches and `read_artifact`, which end when their caller leaves: seconds (above 0)
    for the whole call, waiting for a hub, repeats and all pages included; the hub gets it as the RPC's deadline. Then
    it raises DeadlineExceeded, or HubUnavailable where no hub was there to send to.

    Watches resume by themselves when a hub leaves or a connection breaks. `attempts`: how many streams in a row may
    bring nothing before they raise; None: any number. `on_outage` is called with the seconds until each new stream. A
    hub that refuses, or fails with a reason, is not asked again.
    """

    def __init__(self, connection: Connection, *, context: Context, automatic_keys: bool = False) -> None:
        channel = connection.channel
        self.tools: ToolServiceAsyncStub = ToolServiceStub(channel)
        self.jobs: JobServiceAsyncStub = JobServiceStub(channel)
        self.artifacts: ArtifactServiceAsyncStub = ArtifactServiceStub(channel)
        self.approvals: ApprovalServiceAsyncStub = ApprovalServiceStub(channel)
        self.registry: RegistryServiceAsyncStub = RegistryServiceStub(channel)
        self.audit: AuditServiceAsyncStub = AuditServiceStub(channel)
        self.context = context
        self._connection = connection
        self._automatic_keys = automatic_keys
        # What was exported under which name, in which form last.
        self._exported: dict[str, tuple[str, ExportForm]] = {}

    @property
    def address(self) -> str:
        return self._connection.address

    # Calls

    async def invoke(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Answer:
        """Make one call. A refused or failed call is an Answer; `unwrap()` makes it an exception.

        The RPC ends with `timeout`; else with the context's `timeout_s`, where it has one, and 5 s for the way.
        """
        return await self._invoke(self._request(tool, args, options), timeout_s=options.get("timeout"))

    def face(self, name: FaceName) -> Face:
        """The hub's tools under the names, arguments and answers of CountBot or local-tools."""
        return Face(name, self._connection, self.tools, self._request, self._invoke)

    async def dry_run(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> DryRun:
        """What `invoke` would do."""
        request = self._request(tool, args, options)
        asked = tool_service_pb2.InvokeRequest()
        asked.CopyFrom(request)
        asked.mode = call_pb2.INVOKE_MODE_DRY_RUN
        response = await self._connection.unary(self.tools.Invoke, asked, timeout_s=options.get("timeout"))
        return DryRun(request, response.plan)

    async def commit(self, dry_run: DryRun, *, timeout: float | None = None) -> Answer:
        """Do exactly what the dry run has shown; anything else is PLAN_REQUIRED."""
        request = tool_service_pb2.InvokeRequest()
        request.CopyFrom(dry_run.request)
        request.plan_digest = dry_run.plan_digest
        return await self._invoke(request, timeout_s=timeout)

    async def _invoke(
        self, request: tool_service_pb2.InvokeRequest, rpc: Any = None, *, timeout_s: float | None = None
    ) -> Answer:
        budget = request.context.budget
        if timeout_s is None and budget.HasField("timeout"):
            timeout_s = budget.timeout.ToMicroseconds() / 1e6 + 5
        response = await self._connection.unary(
            rpc or self.tools.Invoke, request, repeatable=bool(request.intent.idempotency_key), timeout_s=timeout_s
        )
        return Answer(response.result)

    async def invoke_stream(
        self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Progress | Chunk | Answer, None]:
        """Make one call and see it happen; the Answer comes last. Leaving the loop early cancels the call."""
        request = tool_service_pb2.InvokeStreamRequest(**self._fields(tool, args, options))
        is_keyed = bool(request.intent.idempotency_key)
        responses = self._connection.events(
            self.tools.InvokeStream, request, repeatable=is_keyed, timeout_s=options.get("timeout")
        )
        async with aclosing(responses):
            async for response in responses:
                match response.WhichOneof("event"):
                    case "progress":
                        yield response.progress
                    case "chunk":
                        yield response.chunk
                    case "result":
                        yield Answer(response.result)

    def session(self) -> Session:
        """Many calls over one stream: `async with hub.session() as session: await session.invoke(…)`."""
        return Session(self._connection, self.tools, lambda *call: tool_service_pb2.SessionCall(**self._fields(*call)))

    # Tools

    async def server_info(self, *, timeout: float | None = None) -> tool_service_pb2.GetServerInfoResponse:
        """What the hub is, can and takes (`server`), and who the caller is to it (`principal`, `roles`)."""
        request = tool_service_pb2.GetServerInfoRequest()
        return await self._connection.unary(self.tools.GetServerInfo, request, timeout_s=timeout)

    def watch_tools(
        self,
        *,
        resume_token: str = "",
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
        **where: Unpack[ToolFields],
    ) -> AsyncGenerator[tool_service_pb2.ToolServiceWatchToolsResponse, None]:
        """Each change of what `list_tools` gives, until the caller leaves, across broken connections. A message that
        says `reset` wants the tools listed anew: the first one does, unless it goes on with a `resume_token`, that of
        the last message seen."""
        request = tool_service_pb2.ToolServiceWatchToolsRequest(
            filter=tool_pb2.ToolFilter(**where), resume_token=resume_token
        )
        messages = resumed(self.tools.WatchTools, request, "tools", attempts=attempts, on_outage=on_outage)
        return self._connection.stream(messages)

    def list_tools(
        self, *, timeout: float | None = None, **where: Unpack[ToolFields]
    ) -> AsyncIterator[tool_pb2.ToolSpec]:
        """Every tool the caller could be allowed, page by page."""
        request = tool_service_pb2.ListToolsRequest(filter=tool_pb2.ToolFilter(**where))
        return self._connection.items(self.tools.ListTools, request, "tools", timeout_s=timeout)

    async def search(
        self, query: str, *, limit: int = 10, timeout: float | None = None, **where: Unpack[ToolFields]
    ) -> Sequence[tool_service_pb2.SearchHit]:
        """The best hits, at most `limit`; 0 means one page, which holds 100."""
        request = tool_service_pb2.SearchToolsRequest(query=query, page_size=limit, filter=tool_pb2.ToolFilter(**where))
        hits: list[tool_service_pb2.SearchHit] = []
        async for page in self._connection.pages(self.tools.SearchTools, request, timeout_s=timeout):
            hits += page.hits
            if len(hits) >= limit:
                break
        return hits[: limit or None]

    async def get_tool(self, name: str, *, timeout: float | None = None) -> tool_pb2.ToolSpec:
        """One tool. Raises NotFound."""
        request = tool_service_pb2.GetToolRequest(name=name)
        return (await self._connection.unary(self.tools.GetTool, request, timeout_s=timeout)).tool

    async def export(
        self, form: ExportForm = "openai", *, timeout: float | None = None, **where: Unpack[ToolFields]
    ) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """Definitions for a model, and each exported name's tool."""
        request = tool_service_pb2.ExportToolsRequest(format=_EXPORT_FORMATS[form], filter=tool_pb2.ToolFilter(**where))
        tools: list[dict[str, Any]] = []
        names: dict[str, str] = {}
        async for page in self._connection.pages(self.tools.ExportTools, request, timeout_s=timeout):
            tools += json.loads(page.tools_json)
            names.update(page.names)
        self._exported.update({exported: (name, form) for exported, name in names.items()})
        return tools, names

    async def run_tool_call(self, call: object, **options: Unpack[CallOptions]) -> dict[str, Any]:
        """Make a model's tool call and return the message that answers it: for OpenAI's Chat Completions and Responses,
        Anthropic's Messages and Gemini.

        The tool is named as any connection has exported it, or by its full name. The arguments are read in the form in
        which this object has exported the tool, else in the one that belongs to the kind of message: state
        `args_form="openai_strict"` if another connection exported that. A refusal is a message, too, and tells the
        model what to do: a call that needs a plan is answered with the plan, which the model commits by calling again
        with `toolhub_plan`. Raises TypeError for what is no tool call, and HubError.
        """
        asked = read_tool_call(call)
        if asked.args is None:
            return asked.answer(NO_OBJECT, True)
        name, form = self._exported.get(asked.name, (asked.name, asked.form))
        options.setdefault("args_form", form)
        answer = await self.invoke(name, asked.args, **options)
        return asked.answer(to_text(answer), not answer.ok)

    # Jobs

    async def submit_job(
        self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> job_pb2.Job:
        """Submit a call as a job, which runs without its caller. The same idempotency key returns the same job.

        A refused call is a job that has FAILED.
        """
        request = job_service_pb2.SubmitJobRequest(**self._fields(tool, args, options))
        response = await self._connection.unary(
            self.jobs.SubmitJob,
            request,
            repeatable=bool(request.intent.idempotency_key),
            timeout_s=options.get("timeout"),
        )
        return response.job

    async def get_job(self, job_id: str, *, timeout: float | None = None) -> job_pb2.Job:
        """One job with its latest status. Raises NotFound."""
        request = job_service_pb2.GetJobRequest(job_id=job_id)
        return (await self._connection.unary(self.jobs.GetJob, request, timeout_s=timeout)).job

    def list_jobs(self, *, timeout: float | None = None, **where: Unpack[JobFields]) -> AsyncIterator[job_pb2.Job]:
        """The caller's jobs, newest first, page by page."""
        request = job_service_pb2.ListJobsRequest(**where)
        return self._connection.items(self.jobs.ListJobs, request, "jobs", timeout_s=timeout)

    def watch_job(
        self,
        job_id: str,
        *,
        after_sequence: int = 0,
        from_first: bool = False,
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
    ) -> AsyncGenerator[job_pb2.JobStatus, None]:
        """Every status of a job to its final one, across broken connections; first the state of now, or with
        `from_first` its whole history."""
        return self._connection.stream(
            jobs.watch_one(
                self.jobs,
                job_id,
                after_sequence=after_sequence,
                from_first=from_first,
                attempts=attempts,
                on_outage=on_outage,
            )
        )

    def watch_jobs(
        self,
        job_ids: Sequence[str] = (),
        *,
        after_sequences: Mapping[str, int] | None = None,
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
        **where: Unpack[WatchedJobFields],
    ) -> AsyncGenerator[job_pb2.JobStatus, None]:
        """The statuses of several jobs in one stream, across broken connections: of those named, until all are final,
        or of all that match, those to come included, until the caller leaves. Raises NotFound."""
        request = job_service_pb2.WatchJobsRequest(job_ids=job_ids, after_sequences=after_sequences, **where)
        return self._connection.stream(jobs.watch_many(self.jobs, request, attempts=attempts, on_outage=on_outage))

    async def job_answer(self, job_id: str, *, timeout: float | None = None) -> Answer:
        """Wait until a job has ended and return its result. When `timeout` passes first, the job keeps running."""
        async with self._connection.within(timeout), aclosing(self.watch_job(job_id)) as statuses:
            async for status in statuses:
                if status.state in jobs.FINAL_STATES:
                    return Answer(status.result)
        raise RuntimeError("a watched job ended without a final state")

    async def cancel_job(self, job_id: str, *, reason: str = "", timeout: float | None = None) -> job_pb2.JobStatus:
        """Ask a job to stop; the status says whether it already has."""
        request = job_service_pb2.CancelJobRequest(job_id=job_id, reason=reason)
        return (await self._connection.unary(self.jobs.CancelJob, request, timeout_s=timeout)).status

    # Artifacts

    async def put_artifact(
        self,
        content: bytes | Path | AsyncIterable[bytes],
        *,
        name: str | None = None,
        media_type: str = "",
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
        timeout: float | None = None,
    ) -> Artifact:
        """Store bytes, a file or a stream of chunks; arguments name it as `{"$artifact": artifact.artifact_id}`. When
        it raises, nothing is stored, unless it is ConnectionLost.

        `name`: None takes a file's own. Of bytes and files the digest is sent first, so that the hub stores exactly
        those, and they resume when a connection breaks (at most `attempts` in a row). `on_progress` is called with the
        bytes sent, and those of the whole or 0. After `stall_s` seconds in which the hub takes nothing it raises
        Stalled; a stream may pause for any time. Raises OSError, and whatever the stream raises.
        """
        async with self._connection.within(timeout):
            header = await uploads.declare(content, name=name, media_type=media_type, task_id=self.context.task_id)
            await self._connection.ready()
            upload = uploads.Upload(self.artifacts, content, header, on_progress=on_progress, stall_s=stall_s)
            try:
                return await upload.run(attempts)
            except grpc.aio.AioRpcError as error:
                raise hub_error(error, self.address) from None

    def read_artifact(
        self,
        artifact: str | Artifact,
        *,
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an artifact, or of the one with that id, in chunks, across broken connections (`attempts` in a
        row at most), compared with its digest: raises DigestMismatch before the last chunk. `on_progress` and
        `stall_s` as of `put_artifact`."""
        chunks = downloads.read(self.artifacts, artifact, attempts=attempts, on_progress=on_progress, stall_s=stall_s)
        return self._connection.stream(chunks)

    async def download_artifact(
        self,
        artifact: str | Artifact,
        file: BinaryIO,
        *,
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
        timeout: float | None = None,
    ) -> Artifact:
        """Write an artifact, or the one with that id, to a file that is open for reading and writing. What the file
        holds already is its beginning, as an earlier download left it: only the rest is transferred, and the digest of
        all is compared. Raises as `read_artifact`, and OSError; the file then keeps what came, and after
        DigestMismatch nothing."""
        async with self._connection.within(timeout):
            await self._connection.ready()
            try:
                return await downloads.download(
                    self.artifacts, artifact, file, attempts=attempts, on_progress=on_progress, stall_s=stall_s
                )
            except grpc.aio.AioRpcError as error:
                raise hub_error(error, self.address) from None

    async def get_artifact(self, artifact: str | Artifact, *, timeout: float | None = None) -> bytes:
        """Its bytes at once; for large ones `read_artifact`. Raises as that."""
        async with self._connection.within(timeout), aclosing(self.read_artifact(artifact)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    def list_artifacts(
        self, *, timeout: float | None = None, **where: Unpack[ArtifactFields]
    ) -> AsyncIterator[Artifact]:
        """The caller's artifacts, those that expire last first, page by page."""
        request = artifact_service_pb2.ListArtifactsRequest(**where)
        return self._connection.items(self.artifacts.ListArtifacts, request, "artifacts", timeout_s=timeout)

    async def delete_artifact(self, artifact_id: str, *, timeout: float | None = None) -> None:
        """Remove one of the caller's own. Raises NotFound."""
        request = artifact_service_pb2.DeleteArtifactRequest(artifact_id=artifact_id)
        await self._connection.unary(self.artifacts.DeleteArtifact, request, repeatable=False, timeout_s=timeout)

    # Approvals

    def list_approvals(
        self, *, timeout: float | None = None, **where: Unpack[ApprovalFields]
    ) -> AsyncIterator[approval_pb2.Approval]:
        """Newest first, page by page: everybody's for approvers, the caller's own for others."""
        request = approval_service_pb2.ListApprovalsRequest(**where)
        return self._connection.items(self.approvals.ListApprovals, request, "approvals", timeout_s=timeout)

    async def get_approval(self, approval_id: str, *, timeout: float | None = None) -> approval_pb2.Approval:
        """One approval. Raises NotFound."""
        request = approval_service_pb2.GetApprovalRequest(approval_id=approval_id)
        return (await self._connection.unary(self.approvals.GetApproval, request, timeout_s=timeout)).approval

    def watch_approvals(
        self,
        *,
        tool: str = "",
        resume_token: str = "",
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
    ) -> AsyncGenerator[approval_service_pb2.WatchApprovalsResponse, None]:
        """Every pending approval, then each change as it happens, until the caller leaves, across broken connections;
        `tool` is a name or a glob. With the last `resume_token` that was not empty it begins with what has changed
        since, decided or not; the latest may come twice."""
        request = approval_service_pb2.WatchApprovalsRequest(tool=tool, resume_token=resume_token)
        watching = self.approvals.WatchApprovals
        messages = resumed(watching, request, "approvals", attempts=attempts, on_outage=on_outage)
        return self._connection.stream(messages)

    async def approve(
        self,
        approval: approval_pb2.Approval,
        *,
        comment: str = "",
        answer: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> approval_pb2.Approval:
        """Approve the call with exactly the arguments that `approval` shows; `answer` is for a question. Raises
        PermissionDenied without the role, and for one's own request."""
        return await self._decide(approval, approval_pb2.DECISION_APPROVE, comment, timeout, answer)

    async def reject(
        self, approval: approval_pb2.Approval, *, comment: str = "", timeout: float | None = None
    ) -> approval_pb2.Approval:
        """Reject a pending approval. Raises as `approve`."""
        return await self._decide(approval, approval_pb2.DECISION_REJECT, comment, timeout)

    async def _decide(
        self,
        approval: approval_pb2.Approval,
        decision: approval_pb2.Decision.ValueType,
        comment: str,
        timeout_s: float | None,
        answer: Mapping[str, Any] | None = None,
    ) -> approval_pb2.Approval:
        request = approval_service_pb2.DecideApprovalRequest(
            approval_id=approval.approval_id,
            decision=decision,
            comment=comment,
            args_digest=approval.args_digest,
            answer_json=b"" if answer is None else to_json(answer),
        )
        return (await self._connection.unary(self.approvals.DecideApproval, request, timeout_s=timeout_s)).approval

    def _request(
        self, tool: str, args: Mapping[str, Any] | None, options: CallOptions
    ) -> tool_service_pb2.InvokeRequest:
        return tool_service_pb2.InvokeRequest(**self._fields(tool, args, options))

    def _fields(self, tool: str, args: Mapping[str, Any] | None, options: CallOptions) -> dict[str, Any]:
        """The fields that InvokeRequest, InvokeStreamRequest, SessionCall and SubmitJobRequest share. Raises TypeError
        for an option that there is not."""
        refuse_unknown(options, CallOptions)
        key = options.get("idempotency_key", "")
        if not key and self._automatic_keys:
            key = uuid.uuid4().hex
        intent = call_pb2.ToolIntent(
            tool=tool,
            args_json=to_json(args or {}),
            purpose=options.get("purpose", ""),
            idempotency_key=key,
            expected_tool_digest=options.get("expected_tool_digest", ""),
            args_form=_ARGS_FORMS[options["args_form"]] if "args_form" in options else call_pb2.ARGS_FORM_UNSPECIFIED,
        )
        context = options.get("context", self.context)
        if not context.request_id:
            context = replace(context, request_id=self.context.request_id)
        return {
            "intent": intent,
            "context": context.to_proto(),
            "plan_digest": options.get("plan_digest", ""),
            "approval_id": options.get("approval_id", ""),
        }
