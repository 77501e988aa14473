"""What the HTTP tools share in running: deadline, bounds, text, evidence, refusal of an error status."""

from __future__ import annotations

import asyncio
import codecs
from dataclasses import dataclass

from toolhub_service.domain.errors import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.guards.headers import Headers, judge_request_headers
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import parse_url
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.tools.text_encoding import judge_encoding

EXCERPT_MAX_CHARS = 2_000
_RETRY_AFTER_MAX_S = 3_600


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What every HTTP tool is constructed with."""

    client: EgressClient
    redactor: Redactor
    """For excerpts of what an upstream answered."""


def deadline_s(timeout_ms: int, context: ToolContext) -> float:
    """Loop clock: the call's deadline or the argument's, whichever comes first."""
    return min(context.deadline_s, asyncio.get_running_loop().time() + timeout_ms / 1000)


def headers_with_type(headers: dict[str, str], content_type: str) -> Headers:
    """The caller's headers, judged, and a Content-Type when a body needs one and they name none."""
    judged = judge_request_headers(headers)
    if not content_type or any(name == "content-type" for name, _ in judged):
        return judged
    return (*judged, ("content-type", content_type))


def refuse_body(method: str) -> ToolFailure:
    """For a body with a method that has none (RFC 9110 §9.3.1)."""
    return refuse(ErrorKind.INVALID_INPUT, f"{method} takes no body. Leave the body out, or use POST.")


def text_of(data: bytes, content_type: str, *, is_cut: bool) -> str:
    """The text of a body, by its declared charset (UTF-8 when none or unknown); nothing is sniffed."""
    decoder = codecs.getincrementaldecoder(_charset(content_type))(errors="replace")
    text = decoder.decode(data, final=not is_cut)
    return text.removeprefix("\ufeff")


def marked_text(data: bytes, response: HttpResponse, context: ToolContext, *, is_cut: bool) -> str:
    """The text of a body; when it was cut, with a marker at its end and `context.truncated` set."""
    text = text_of(data, response.header(b"content-type"), is_cut=is_cut)
    if not is_cut:
        return text
    context.truncated = True
    announced = response.announced_bytes
    whole = f"of {announced}" if announced is not None else "of more"
    return f"{text}\n… [cut: the first {len(data)} {whole} bytes; raise maxBytes or download the file]"


def prove_exchange(context: ToolContext, response: HttpResponse, size_bytes: int, sha256: str = "") -> None:
    """Lay down what was asked, who answered from where, and what came."""
    attributes = {"status": str(response.status), "address": response.address}
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


async def refuse_error_status(services: HttpServices, response: HttpResponse) -> None:
    """Raises ToolFailure UPSTREAM_ERROR with an excerpt unless the status is 2xx."""
    if 200 <= response.status < 300:
        return
    excerpt = excerpt_of(services, await response.beginning(4 * EXCERPT_MAX_CHARS), response)
    retryable = response.status in {408, 425, 429} or response.status >= 500
    raise refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"{response.url.host} answered with status {response.status}. "
        + ("Try again later." if retryable else "Correct the request by what the excerpt says."),
        retryable=retryable,
        retry_after_s=_retry_after_s(response) if retryable else None,
        upstream=Upstream(response.status, excerpt),
    )


def excerpt_of(services: HttpServices, data: bytes, response: HttpResponse) -> str:
    """The beginning of a body for an error, redacted, at most 2,000 characters."""
    text = text_of(data[: 4 * EXCERPT_MAX_CHARS], response.header(b"content-type"), is_cut=True)
    return services.redactor.text(text)[:EXCERPT_MAX_CHARS]


def too_large(response: HttpResponse, max_bytes: int) -> ToolFailure:
    """For a body that must be whole and is not."""
    return refuse(
        ErrorKind.HTTP_TOO_LARGE,
        f"The answer of {response.url.host} is larger than {max_bytes} bytes. "
        "Raise maxBytes where the policy allows it, or ask for less.",
        max_bytes=max_bytes,
        announced_bytes=response.announced_bytes,
    )


def upstream_of(url: str) -> str:
    """The breaker a URL belongs to, `http:<host>`; empty for what is no URL."""
    try:
        return f"http:{parse_url(url).host}"
    except ToolFailure:
        return ""


def effect_of(request: HttpRequest) -> str:
    """One sentence for a plan, without the secrets of the URL. Raises ToolFailure for a URL that is none."""
    what = f"{request.method} {shown_url(parse_url(request.url))}"
    return f"Send {what} with {len(request.body):,} bytes." if request.body else f"Send {what}."


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                return judge_encoding(value.strip().strip("\"'"))
            except ToolFailure:
                return "utf-8"
    return "utf-8"


def _retry_after_s(response: HttpResponse) -> float | None:
    value = response.header(b"retry-after")
    return float(min(int(value[:9]), _RETRY_AFTER_MAX_S)) if value.isascii() and value.isdigit() else None
