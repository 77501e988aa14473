"""What every core/http.* tool does: one exchange through the egress client, bounded, with evidence, and shown in plans.
A tool adds its request and the processing of the answer (tools.py)."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, ClassVar, Final, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from toolhub_service.aio.threads import to_thread_if_large
from toolhub_service.domain.errors.failure import WAS_SENT, ErrorKind, ToolError, ToolFailure, Upstream, refuse
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import NETWORK, Annotations, ArgumentRole, CostHints, GuardedArgument, ToolLimits
from toolhub_service.egress.breakage import CHECK_EFFECT, Repeat
from toolhub_service.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.egress.hiding import mask_cut
from toolhub_service.egress.json_bodies import JsonBodies
from toolhub_service.guards.headers import Headers, check_request_headers, shown_response_headers
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import URL_MAX_BYTES, parse_url
from toolhub_service.tools.charsets import charset_of_body
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.http.host_credentials import HostCredentials, credential_name_at, open_as_caller
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

# What HTTP tools make from a response: text, evidence, and failures for an error status or too large a body.

EXCERPT_MAX_CHARS = 2_000
_RETRY_AFTER_MAX_S = 3_600


class Answer(msgspec.Struct, frozen=True):
    """A response and its body, up to the limit."""

    response: HttpResponse
    data: bytes
    """Decoded."""
    is_cut: bool
    """Whether there was more than `max_bytes`."""
    max_bytes: int
    by_policy: bool = False
    """Whether `max_bytes` is the policy's limit, less than the caller asked for."""


def more_bytes(max_bytes: int, *, by_policy: bool) -> str:
    """Return how to get the rest of a truncated body."""
    if by_policy:
        return f"the policy limits a response to {max_bytes} bytes, so use core/http.downloadFile"
    return "raise maxBytes, or use core/http.downloadFile"


def mark_text(answer: Answer, context: ToolContext) -> str:
    """Return the text of a body; if it was truncated, with a marker at its end, `context.truncated` set, and evidence
    of why the rest was not kept."""
    text = text_of(answer.data, answer.response.header(b"content-type"), is_cut=answer.is_cut)
    if not answer.is_cut:
        return text
    context.truncated = True
    announced = answer.response.announced_bytes
    whole = f"of {announced}" if announced is not None else "of more"
    advice = more_bytes(answer.max_bytes, by_policy=answer.by_policy)
    why = f"only the first {len(answer.data)} {whole} bytes were read and none of the rest was kept: {advice}"
    context.proves(EvidenceType.URL, shown_url(answer.response.url), why)
    return f"{text}\n… [cut: the first {len(answer.data)} {whole} bytes; {advice}]"


def text_of(data: bytes, content_type: str, *, is_cut: bool) -> str:
    """Return the text of a body, by its byte-order mark or the charset that the server or, of HTML and XML, the page
    declares (UTF-8 when none or unknown); nothing is guessed."""
    decoder = codecs.getincrementaldecoder(charset_of_body(data, content_type))(errors="replace")
    text = decoder.decode(data, final=not is_cut)
    return text.removeprefix("\ufeff")


def prove_exchange(context: ToolContext, response: HttpResponse, size_bytes: int, sha256: str = "") -> None:
    """Add evidence of the request, of the answering address and of the received body; a 5xx answer counts against its
    origin."""
    if response.status >= 500 and (not response.redirects or response.redirects[0].origin == response.url.origin):
        context.upstream_fails = True
    attributes = {"status": str(response.status), "address": response.address}
    if response.repeat is Repeat.KEYED:
        attributes["idempotency_key"] = "sent"
    if response.redirects:
        attributes["redirects"] = " ".join(shown_url(url) for url in response.redirects)
    if sha256:
        attributes["bytes"] = str(size_bytes)
    context.proves(
        EvidenceType.URL,
        shown_url(response.url),
        f"{response.method} {response.status}, {size_bytes} bytes",
        sha256=sha256,
        **attributes,
    )


_IN_PROGRESS: Final = 409


async def refuse_error_status(response: HttpResponse, redactor: Redactor, mask: Mask | None = None) -> None:
    """Raises ToolFailure UPSTREAM_ERROR with an excerpt, masked before it is cut, unless the status is 2xx."""
    if 200 <= response.status < 300:
        return
    excerpt = excerpt_of(await response.beginning(4 * EXCERPT_MAX_CHARS), response, redactor, mask)
    raise ToolFailure(_error_of_status(response, excerpt))


def note_passing(response: HttpResponse, context: ToolContext) -> None:
    """Let the call be made again where the status is its result, but the same request may soon have another."""
    if not 200 <= response.status < 400:
        error = _error_of_status(response, "")
        context.passing = error if error.is_retryable else None


def _error_of_status(response: HttpResponse, excerpt: str) -> ToolError:
    """Return the error of a status that is not 2xx: what it says about the request, and whether that may be sent
    again."""
    processing = processing_of(response.status)
    repeat = response.repeat
    was_processed = processing is Processing.ANSWERED and response.status >= 500
    may_have_acted = response.has_acted or (
        repeat is not Repeat.READS and (was_processed or processing is Processing.UNKNOWN)
    )
    if processing is Processing.ANSWERED:
        # For a request with a key 409 means that the first one with it is still being processed (the draft of the
        # header).
        retryable = (was_processed and repeat is not Repeat.NEVER) or (
            response.status == _IN_PROGRESS and repeat is Repeat.KEYED
        )
    else:
        retryable = repeat is not Repeat.NEVER or not may_have_acted
    if may_have_acted and not retryable:
        advice = CHECK_EFFECT
    else:
        advice = "Try again later." if retryable else "Correct the request as the excerpt says."
    # The server's own 5xx is an answer: it failed, in the middle or not.
    is_unknown = may_have_acted and not (was_processed and not response.has_acted)
    return ToolError(
        ErrorKind.UPSTREAM_ERROR,
        f"{response.url.host} answered with status {response.status}. {advice}",
        retryable=retryable,
        retry_after_s=_retry_after_s(response) if retryable else None,
        upstream=Upstream(response.status, excerpt),
        details={**repeat.facts, **({WAS_SENT: True} if is_unknown else {})},
    )


def excerpt_of(data: bytes, response: HttpResponse, redactor: Redactor, mask: Mask | None = None) -> str:
    """Return the beginning of a body for an error, redacted and masked, at most 2,000 characters."""
    text = text_of(mask_cut(data[: 4 * EXCERPT_MAX_CHARS], mask), response.header(b"content-type"), is_cut=True)
    return redactor.text(text)[:EXCERPT_MAX_CHARS]


def check_effect(response: HttpResponse) -> str:
    """Return the sentence about an answer that cannot be used, when its request may have had its effect; else
    nothing."""
    if response.repeat is Repeat.READS:
        return ""
    return f" The request was answered with status {response.status}. {CHECK_EFFECT}"


def too_large(response: HttpResponse, max_bytes: int, *, by_policy: bool) -> ToolFailure:
    """Return the failure of a body that exceeds the limit but must be whole. `by_policy`: the policy allows less than
    was asked for."""
    advice = "The policy allows no more: request less." if by_policy else "Raise maxBytes, or request less."
    advice += check_effect(response)
    return refuse(
        ErrorKind.HTTP_TOO_LARGE,
        f"The response of {response.url.host} is larger than {max_bytes} bytes. {advice}",
        max_bytes=max_bytes,
        announced_bytes=response.announced_bytes,
    )


def _retry_after_s(response: HttpResponse) -> float | None:
    value = response.header(b"retry-after")
    return float(min(int(value[:9]), _RETRY_AFTER_MAX_S)) if value.isascii() and value.isdigit() else None


# The arguments and results that the HTTP tools share, with their limits and defaults.

DEFAULT_TIMEOUT_MS = 15_000
DEFAULT_MAX_BYTES = 5 * 1024 * 1024

Url = Annotated[
    str,
    Meta(
        description="Absolute http or https URL of an allowed host; no user name or password in it.",
        min_length=1,
        max_length=URL_MAX_BYTES,
        extra_json_schema={"format": "uri"},
    ),
]
RequestHeaders = Annotated[
    dict[str, str],
    Meta(description="Request headers. Host, Content-Length and other headers of the connection are set by the hub."),
]
TimeoutMs = Annotated[int, Meta(description="Time for the whole exchange, redirects included.", ge=1_000, le=60_000)]
MaxBytes = Annotated[int, Meta(description="Most bytes of the decoded body to read.", ge=1_024, le=10 * 1024 * 1024)]
GetOrPost = Annotated[Literal["GET", "POST"], Meta(description="POST only where the policy allows it.")]
TextBody = Annotated[
    Annotated[str, Meta(max_length=4 * 1024 * 1024)] | None, Meta(description="Body of a POST, sent as UTF-8.")
]

GUARDED_URL = (GuardedArgument("url", ArgumentRole.URL),)
GUARDED_URL_AND_METHOD = (*GUARDED_URL, GuardedArgument("method", ArgumentRole.METHOD))


class UrlInput(ToolInput, frozen=True):
    """What every HTTP tool is asked for."""

    url: Url


class FetchInput(UrlInput, frozen=True):
    """What the tools that fetch a body are asked for."""

    method: GetOrPost = "GET"
    headers: RequestHeaders = msgspec.field(default_factory=dict)
    body: TextBody = None
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
    max_bytes: MaxBytes = DEFAULT_MAX_BYTES


class AnswerHead(ToolOutput, frozen=True):
    """What a response says before its body."""

    url: str
    """Where the answer came from, after redirects."""
    status: int
    headers: dict[str, str]


class HeadFields(TypedDict):
    """The fields of `AnswerHead`."""

    url: str
    status: int
    headers: dict[str, str]


def head_of(response: HttpResponse, context: ToolContext) -> HeadFields:
    """Return the fields of `AnswerHead` for a response, with the headers that may be shown, masked before they are
    truncated."""
    mask = context.mask
    headers = response.headers if mask is None else [(name, mask.data(value)) for name, value in response.headers]
    return {
        "url": str(response.url),
        "status": response.status,
        "headers": shown_response_headers(headers),
    }


Input = TypeVar("Input", bound=UrlInput)
Fetch = TypeVar("Fetch", bound=FetchInput)
Output = TypeVar("Output", bound=ToolOutput)

# A timeout shorter by up to a tenth is not the caller's choice: that time was spent before the request.
_ALMOST = 0.9
_MARGIN_S: Final = 0.05


class HttpServices(msgspec.Struct, frozen=True):
    """Services that every HTTP tool is constructed with."""

    client: EgressClient
    redactor: Redactor
    """Redacts excerpts of an upstream's answer."""
    bodies: JsonBodies = msgspec.field(default_factory=JsonBodies)
    hosts: HostCredentials | None = None
    """Hosts that are called with the caller's own credential; None: there are none."""


class HttpTool(Tool[Input, Output]):
    """Subclasses define `request` besides what every tool does."""

    capabilities = frozenset({NETWORK})
    cost = CostHints(latency_ms_p50=200, latency_ms_p95=3_000)
    limits = ToolLimits(timeout_s=60.0, max_retries=2)
    guarded: ClassVar[tuple[GuardedArgument, ...]] = GUARDED_URL_AND_METHOD
    default_timeout_ms: ClassVar[int] = DEFAULT_TIMEOUT_MS
    """Timeout of the whole exchange, unless the caller sets another."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    def request(self, args: Input) -> HttpRequest:
        """Return the request to send. Raises ToolFailure INVALID_INPUT for invalid headers or an invalid body."""
        raise TypeError(f"{type(self).__name__} must define request()")

    def effects(self, args: Input, context: ToolContext) -> Sequence[str]:
        request = self.request(args)
        what = f"{request.method} {shown_url(parse_url(request.url))}"
        if name := credential_name_at(self._services.hosts, request.url):
            what += f" as the caller is known to {name}"
        return (f"Send {what} with {len(request.body):,} bytes." if request.body else f"Send {what}.",)

    def upstream(self, args: Input) -> str:
        """Return the origin, such as `https://api.example.com`; empty for an invalid URL."""
        try:
            parsed = parse_url(args.url)
        except ToolFailure:
            return ""
        return f"{parsed.scheme}://{parsed.authority}"

    def _open(
        self, request: HttpRequest, timeout_ms: int, context: ToolContext
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """`timeout_ms` shortens the call's own deadline; less than the tool's default is the caller's choice."""
        now_s = asyncio.get_running_loop().time()
        # A little before the call's own deadline, so that the answer says whether the request was sent.
        left_s = context.deadline_s - now_s
        ends_s = min(context.deadline_s - min(_MARGIN_S, left_s / 10), now_s + timeout_ms / 1000)
        if context.idempotency_key:
            request = msgspec.structs.replace(request, idempotency_key=self._upstream_key(context))
        client = self._services.client
        fair_s = _ALMOST * self.default_timeout_ms / 1000
        hosts = self._services.hosts
        if hosts is not None:
            return open_as_caller(client, hosts, request, context, deadline_s=ends_s, fair_s=fair_s)
        return client.open(request, context.constraints.egress, deadline_s=ends_s, fair_s=fair_s)

    def _upstream_key(self, context: ToolContext) -> str:
        """Return the call's key in the scope of principal and tool, so that a host without credentials never answers
        one caller with another's result. It is the same for every attempt and names nobody."""
        scope = f"{context.principal_id}\0{self.name}".encode("utf-8", "replace")
        return f"{hashlib.sha256(scope).hexdigest()[:16]}-{context.idempotency_key}"

    async def _to_http_answer(
        self, args: Input, context: ToolContext, *, timeout_ms: int, max_bytes: int, needs_success: bool = False
    ) -> Answer:
        """Return the answer with its body read and evidence added. Raises ToolFailure UPSTREAM_ERROR if `needs_success`
        and not 2xx."""
        bound_bytes = min(max_bytes, context.constraints.sandbox.max_http_bytes)
        async with self._open(self.request(args), timeout_ms, context) as response:
            if needs_success:
                await refuse_error_status(response, self._services.redactor, context.mask)
            note_passing(response, context)
            body = response.body(bound_bytes)
            data = await body.whole()
        sha256 = await to_thread_if_large(len(data), lambda _: hashlib.sha256(data).hexdigest())
        prove_exchange(context, response, len(data), sha256)
        if body.is_cut:
            data = mask_cut(data, context.mask)
        return Answer(response, data, body.is_cut, bound_bytes, by_policy=bound_bytes < max_bytes)


class FetchTool(HttpTool[Fetch, Output]):
    """Subclasses fetch a body by GET, or by POST where the policy allows it."""

    annotations = Annotations(open_world=True)

    def has_side_effects(self, args: Fetch) -> bool:
        return args.method != "GET"


# The request of arguments that match the schema.


def fetch_request(args: FetchInput, *, content_type: str, accept: str) -> HttpRequest:
    """Return the request of a tool that fetches; `content_type` is that of its body. Raises ToolFailure
    INVALID_INPUT."""
    if args.body is not None and args.method == "GET":
        raise refuse_body("GET")
    headers = headers_with_type(args.headers, content_type if args.body is not None else "")
    body = (args.body or "").encode("utf-8", "replace")
    return HttpRequest(args.url, args.method, headers, body, accept=accept)


def headers_with_type(headers: dict[str, str], content_type: str) -> Headers:
    """Return the caller's headers, checked, with a Content-Type if a body needs one and they have none."""
    checked = check_request_headers(headers)
    if not content_type or any(name == "content-type" for name, _ in checked):
        return checked
    return (*checked, ("content-type", content_type))


def refuse_body(method: str) -> ToolFailure:
    """Return the failure for a body with a method that has none (RFC 9110 §9.3.1)."""
    return refuse(ErrorKind.INVALID_INPUT, f"{method} allows no body. Leave the body out, or use POST.")
