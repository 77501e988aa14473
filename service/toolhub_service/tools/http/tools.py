"""The core/http.* tools, over one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from toolhub_service.aio.threads import ByteProgress
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import (
    NETWORK,
    WRITE_FS,
    Annotations,
    ArgumentRole,
    CostHints,
    Example,
    GuardedArgument,
    ToolLimits,
)
from toolhub_service.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.egress.hiding import MaskedPieces, Pieces
from toolhub_service.egress.json_bodies import MOST, is_large
from toolhub_service.guards.headers import check_request_headers
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.schema.repaired_json import Repaired, repair_evidence
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.values import FilePath, Overwrite, check_overwrite, target
from toolhub_service.tools.http.exchange import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    GUARDED_URL,
    Answer,
    AnswerHead,
    FetchInput,
    FetchTool,
    HttpServices,
    HttpTool,
    MaxBytes,
    RequestHeaders,
    TimeoutMs,
    UrlInput,
    check_effect,
    excerpt_of,
    fetch_request,
    head_of,
    headers_with_type,
    mark_text,
    note_passing,
    prove_exchange,
    refuse_body,
    refuse_error_status,
    too_large,
)
from toolhub_service.tools.http.host_credentials import HostCredentials
from toolhub_service.tools.tool import Tool, ToolOutput
from toolhub_service.tools.workspace.atomic_file import AtomicFile

# core/http.downloadFile: stores a body as a file of the workspace, hashed on the way; a partial file never remains.

_MAX_BYTES = 100 * 1024 * 1024
_NAMES_MAX = 20
_NAME_CHARS = 64
_TIMEOUT_MS = 60_000


class HttpDownloadFile(HttpTool["HttpDownloadFile.In", "HttpDownloadFile.Out"]):
    name = "core/http.downloadFile"
    description = (
        "Download a URL into a file of the workspace and return its size and sha256. Fails, leaving nothing behind, "
        "when the status is not 2xx or the body is larger than maxBytes."
    )
    tags = ("http", "web", "fs")
    capabilities = frozenset({NETWORK, WRITE_FS})
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
        check_overwrite(args.overwrite, context.constraints.sandbox)
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

    async def _fill(self, draft: AtomicFile, args: In, max_bytes: int, context: ToolContext) -> HttpResponse:
        by_policy = max_bytes < args.max_bytes
        async with self._open(self.request(args), args.timeout_ms, context) as response:
            await refuse_error_status(response, self._services.redactor, context.mask)
            if (response.announced_bytes or 0) > max_bytes:
                raise too_large(response, max_bytes, by_policy=by_policy)
            body = response.body(max_bytes)
            pieces = body if context.mask is None else MaskedPieces(body, context.mask)
            await _copy(pieces, draft, ByteProgress(context.sink, response.announced_bytes or 0))
            if body.is_cut:
                raise too_large(response, max_bytes, by_policy=by_policy)
        return response


async def _copy(body: Pieces, draft: AtomicFile, progress: ByteProgress) -> None:
    while piece := await body.next_piece():
        draft.write(piece)
        progress.advance(len(piece))
    progress.finish()


# core/http.request: any method, for APIs that change things.

Method = Annotated[
    Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    Meta(description="Which methods may be used, and where, is a matter of policy."),
]
Body = Annotated[
    str | dict[str, Any] | list[Any] | None,
    Meta(description="A string is sent as it is, an object or array as JSON. GET and HEAD take none."),
]


class HttpRequestTool(HttpTool["HttpRequestTool.In", "HttpRequestTool.Out"]):
    name = "core/http.request"
    description = (
        "Send an HTTP request with any method (GET, POST, PUT, PATCH, DELETE, HEAD) and return status, headers and "
        "body as text. A 4xx or 5xx status is a result, not an error. To read only, prefer core/http.fetchText or "
        "core/http.fetchJson."
    )
    tags = ("http", "api")
    annotations = Annotations(destructive=True, open_world=True)
    examples = (
        Example(
            "Create an item",
            {"url": "https://api.example.com/v1/items", "method": "POST", "body": {"name": "lamp"}},
        ),
    )

    class In(UrlInput, frozen=True):
        method: Method = "GET"
        headers: RequestHeaders = field(default_factory=dict)
        body: Body = None
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
        max_bytes: MaxBytes = DEFAULT_MAX_BYTES

    class Out(AnswerHead, frozen=True):
        body: str
        bytes: int
        """Of the decoded body, as far as it was read."""
        truncated: Annotated[bool, Meta(description="Whether the body was cut.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        answer = await self._to_http_answer(args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes)
        return self.Out(
            **head_of(answer.response, context),
            body=mark_text(answer, context),
            bytes=len(answer.data),
            truncated=answer.is_cut,
        )

    def request(self, args: In) -> HttpRequest:
        if args.body is None:
            return HttpRequest(args.url, args.method, headers_with_type(args.headers, ""))
        if args.method in {"GET", "HEAD"}:
            raise refuse_body(args.method)
        if isinstance(args.body, str):
            content = args.body.encode("utf-8", "replace")
            content_type = "text/plain; charset=utf-8"
        else:
            content = msgspec.json.encode(args.body)
            content_type = "application/json"
        return HttpRequest(args.url, args.method, headers_with_type(args.headers, content_type), content)

    def has_side_effects(self, args: In) -> bool:
        return args.method not in {"GET", "HEAD"}


# core/http.head: only status and headers, to check size and freshness before fetching.


class HttpHead(HttpTool["HttpHead.In", AnswerHead]):
    name = "core/http.head"
    description = (
        "Ask for the status and headers of a URL without its body (HEAD): size, type, ETag, freshness. "
        "Any status is a result, not an error."
    )
    tags = ("http", "web")
    annotations = Annotations(read_only=True, idempotent=True, open_world=True)
    cost = CostHints(latency_ms_p50=100, latency_ms_p95=2_000)
    guarded = GUARDED_URL
    Out = AnswerHead
    examples = (Example("Is it worth fetching?", {"url": "https://example.com/big.zip"}),)

    class In(UrlInput, frozen=True):
        headers: RequestHeaders = field(default_factory=dict)
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS

    async def run(self, args: In, context: ToolContext) -> AnswerHead:
        async with self._open(self.request(args), args.timeout_ms, context) as response:
            note_passing(response, context)
            prove_exchange(context, response, 0)
        return AnswerHead(**head_of(response, context))

    def request(self, args: In) -> HttpRequest:
        return HttpRequest(args.url, "HEAD", check_request_headers(args.headers))


# core/http.fetchJson: an API answer as a JSON value; what strict parsers refuse is repaired, and evidence says so.


class HttpFetchJson(FetchTool[FetchInput, "HttpFetchJson.Out"]):
    name = "core/http.fetchJson"
    description = (
        "Request a URL, such as one of a web API, and return the body as a JSON value. A status other than 2xx and a "
        "body that is not JSON are errors that carry an excerpt. For other content use core/http.fetchText."
    )
    tags = ("http", "web", "json")
    examples = (Example("Ask an API", {"url": "https://api.example.com/v1/items?limit=10"}),)
    In = FetchInput

    class Out(AnswerHead, frozen=True):
        json: Any
        bytes: int
        """Of the decoded body."""

    async def run(self, args: FetchInput, context: ToolContext) -> Out:
        answer = await self._to_http_answer(
            args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes, needs_success=True
        )
        if answer.is_cut:
            raise too_large(answer.response, answer.max_bytes, by_policy=answer.by_policy)
        context.is_large = is_large(answer.data)
        value, repairs = await self._value(answer, context)
        _prove_value(context, value)
        context.evidence += repair_evidence(answer.response.url.host, repairs)
        return self.Out(
            **head_of(answer.response, context),
            json=value,
            bytes=len(answer.data),
        )

    def request(self, args: FetchInput) -> HttpRequest:
        return fetch_request(args, content_type="application/json", accept="application/json")

    async def _value(self, answer: Answer, context: ToolContext) -> Repaired:
        try:
            return await self._services.bodies.read(answer.data)
        except ToolFailure as failure:
            response = answer.response
            if failure.error.details.get("reason") == "too_many_values":
                raise refuse(
                    ErrorKind.UPSTREAM_ERROR,
                    f"The JSON of {response.url.host} has too many small parts: more than {MOST.containers:,} "
                    f"arrays and objects, {MOST.members:,} members or {MOST.separators:,} items. Request less, or "
                    f"use core/http.downloadFile.{check_effect(response)}",
                    retryable=False,
                    reason="too_many_values",
                ) from None
            raise refuse(
                ErrorKind.UPSTREAM_ERROR,
                f"The response of {response.url.host} is not strict JSON. {failure.error.message} Use "
                f"core/http.fetchText to see it as text.{check_effect(response)}",
                retryable=False,
                upstream=Upstream(
                    response.status, excerpt_of(answer.data, response, self._services.redactor, context.mask)
                ),
            ) from None


def _prove_value(context: ToolContext, value: JsonValue) -> None:
    """Add the names of the first received members, without values, to the evidence of the exchange."""
    names = list(value)[:_NAMES_MAX] if isinstance(value, dict) else []
    if context.mask is not None:  # before they are truncated
        names = list(map(context.mask.text, names))
    names = [name[:_NAME_CHARS] for name in names]
    kind = f"an array of {len(value)}" if isinstance(value, list) else "an object" if names else "a value"
    proof = context.evidence[-1]
    summary = f"{proof.summary}: {kind}" + (f" with {', '.join(names)}" if names else "")
    context.evidence[-1] = proof._replace(summary=summary, attributes={**proof.attributes, "fields": ",".join(names)})


# core/http.fetchText: a page or an API answer as text.


class HttpFetchText(FetchTool[FetchInput, "HttpFetchText.Out"]):
    name = "core/http.fetchText"
    description = (
        "Fetch a web page or any other URL and return the body as text, with status and headers. A 4xx or 5xx "
        "status is a result, not an error. Longer bodies are cut at maxBytes and marked. To read an article use "
        "core/web.fetch, for JSON core/http.fetchJson, for files core/http.downloadFile."
    )
    tags = ("http", "web")
    examples = (Example("Read a page", {"url": "https://example.com/"}),)
    In = FetchInput

    class Out(AnswerHead, frozen=True):
        text: str
        bytes: int
        """Of the decoded body, as far as it was read."""
        truncated: Annotated[bool, Meta(description="Whether the text was cut.")]

    async def run(self, args: FetchInput, context: ToolContext) -> Out:
        answer = await self._to_http_answer(args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes)
        return self.Out(
            **head_of(answer.response, context),
            text=mark_text(answer, context),
            bytes=len(answer.data),
            truncated=answer.is_cut,
        )

    def request(self, args: FetchInput) -> HttpRequest:
        return fetch_request(args, content_type="text/plain; charset=utf-8", accept="text/*, */*;q=0.8")


def http_tools(
    client: EgressClient, redactor: Redactor | None = None, hosts: HostCredentials | None = None
) -> list[Tool[Any, Any, Any]]:
    """Return every HTTP tool.

    The owner of `client` closes it (`await client.aclose()`) after the last call. `redactor` redacts excerpts of
    answers; None: one without secret values of its own.
    """
    services = HttpServices(client, redactor or Redactor(), hosts=hosts)
    return [
        HttpFetchText(services),
        HttpFetchJson(services),
        HttpHead(services),
        HttpRequestTool(services),
        HttpDownloadFile(services),
    ]
