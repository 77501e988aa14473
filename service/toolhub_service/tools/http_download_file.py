"""core/http.downloadFile: a body into a file of the workspace, hashed on the way; a partial file never remains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, CostHints, Example, GuardedArgument, ToolLimits
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.draft import Draft
from toolhub_service.tools.egress.body import BoundedBody
from toolhub_service.tools.egress.client import HttpRequest, HttpResponse
from toolhub_service.tools.fs_plans import target
from toolhub_service.tools.fs_values import FilePath, Overwrite, judge_overwrite
from toolhub_service.tools.http_answer import prove_exchange, refuse_error_status, too_large
from toolhub_service.tools.http_exchange import HttpTool
from toolhub_service.tools.http_fields import GUARDED_URL, UrlInput
from toolhub_service.tools.off_loop import ByteProgress
from toolhub_service.tools.tool import ToolOutput

_MAX_BYTES = 100 * 1024 * 1024
_TIMEOUT_MS = 60_000


class HttpDownloadFile(HttpTool["HttpDownloadFile.In", "HttpDownloadFile.Out"]):
    name = "core/http.downloadFile"
    description = (
        "Download a URL into a file of the workspace and return its size and sha256. Fails, leaving nothing behind, "
        "when the status is not 2xx or the body is larger than maxBytes."
    )
    tags = ("http", "web", "fs")
    capabilities = frozenset({capability.NETWORK, capability.WRITE_FS})
    annotations = Annotations(idempotent=True, open_world=True, supports_progress=True)
    cost = CostHints(latency_ms_p50=1_000, latency_ms_p95=30_000)
    limits = ToolLimits(timeout_s=120.0, max_retries=2)
    guarded = (*GUARDED_URL, GuardedArgument("destPath", ArgumentRole.PATH_WRITE))
    examples = (Example("Fetch a file", {"url": "https://example.com/data.csv", "destPath": "data/raw.csv"}),)
    default_timeout_ms = _TIMEOUT_MS

    class In(UrlInput, frozen=True):
        dest_path: FilePath
        timeout_ms: Annotated[int, Meta(description="Time for the whole download.", ge=1_000, le=120_000)] = _TIMEOUT_MS
        max_bytes: Annotated[int, Meta(description="Largest file to accept.", ge=1_024, le=_MAX_BYTES)] = _MAX_BYTES
        overwrite: Overwrite = False

    class Out(ToolOutput, frozen=True):
        dest_path: str
        bytes: int
        sha256: str

    async def run(self, args: In, context: ToolContext) -> Out:
        judge_overwrite(args.overwrite, context.constraints.sandbox)
        max_bytes = min(args.max_bytes, context.constraints.sandbox.max_download_bytes)
        with context.workspace.write_atomic(args.dest_path, overwrite=args.overwrite, max_bytes=max_bytes) as draft:
            response = await self._fill(draft, args, max_bytes, context)
        prove_exchange(context, response, draft.written_bytes, draft.sha256)
        summary = f"{draft.written_bytes} bytes from {shown_url(response.url)}"
        context.proves(EvidenceType.FILE, draft.path, summary, sha256=draft.sha256)
        return self.Out(dest_path=draft.path, bytes=draft.written_bytes, sha256=draft.sha256)

    def touches(self, args: In) -> Sequence[str]:
        return (args.dest_path,) if args.overwrite else ()

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        sandbox = context.constraints.sandbox
        place = target(context.workspace, args.dest_path, sandbox, overwrite=args.overwrite)
        at_most = min(args.max_bytes, sandbox.max_download_bytes)
        return (*super().effects(args, context), f"Write the answer to {place}, at most {at_most:,} bytes.")

    def request(self, args: In) -> HttpRequest:
        return HttpRequest(args.url, accept_encoding="identity")

    async def _fill(self, draft: Draft, args: In, max_bytes: int, context: ToolContext) -> HttpResponse:
        async with self._open(self.request(args), args.timeout_ms, context) as response:
            await refuse_error_status(response, self._services.redactor)
            if (response.announced_bytes or 0) > max_bytes:
                raise too_large(response, max_bytes)
            body = response.body(max_bytes)
            await _copy(body, draft, ByteProgress(context.sink, response.announced_bytes or 0))
            if body.is_cut:
                raise too_large(response, max_bytes)
        return response


async def _copy(body: BoundedBody, draft: Draft, progress: ByteProgress) -> None:
    while piece := await body.next_piece():
        draft.write(piece)
        progress.advance(len(piece))
    progress.finish()
