"""What HTTP tools make of a response: text, evidence, and the refusal of an error status or of what is too large."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from toolhub_service.domain.errors import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpResponse
from toolhub_service.tools.json_bodies import MOST
from toolhub_service.tools.text_encoding import judge_encoding

EXCERPT_MAX_CHARS = 2_000
_RETRY_AFTER_MAX_S = 3_600


@dataclass(frozen=True, slots=True)
class Answer:
    """A response and as much of its body as was to be read."""

    response: HttpResponse
    data: bytes
    """Decoded."""
    is_cut: bool
    """Whether there was more than `max_bytes`."""
    max_bytes: int


def marked_text(answer: Answer, context: ToolContext) -> str:
    """The text of a body; when it was cut, with a marker at its end and `context.truncated` set."""
    text = text_of(answer.data, answer.response.header(b"content-type"), is_cut=answer.is_cut)
    if not answer.is_cut:
        return text
    context.truncated = True
    announced = answer.response.announced_bytes
    whole = f"of {announced}" if announced is not None else "of more"
    return f"{text}\n… [cut: the first {len(answer.data)} {whole} bytes; raise maxBytes or download the file]"


def text_of(data: bytes, content_type: str, *, is_cut: bool) -> str:
    """The text of a body, by its declared charset (UTF-8 when none or unknown); nothing is sniffed."""
    decoder = codecs.getincrementaldecoder(_charset(content_type))(errors="replace")
    text = decoder.decode(data, final=not is_cut)
    return text.removeprefix("\ufeff")


def prove_exchange(context: ToolContext, response: HttpResponse, size_bytes: int, sha256: str = "") -> None:
    """Lay down what was asked, who answered from where, and what came; an answer 5xx is held against its origin."""
    if response.status >= 500 and (not response.redirects or response.redirects[0].origin == response.url.origin):
        context.upstream_fails = True
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


async def refuse_error_status(response: HttpResponse, redactor: Redactor) -> None:
    """Raises ToolFailure UPSTREAM_ERROR with an excerpt unless the status is 2xx."""
    if 200 <= response.status < 300:
        return
    excerpt = excerpt_of(await response.beginning(4 * EXCERPT_MAX_CHARS), response, redactor)
    retryable = response.status in {408, 425, 429} or response.status >= 500
    raise refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"{response.url.host} answered with status {response.status}. "
        + ("Try again later." if retryable else "Correct the request by what the excerpt says."),
        retryable=retryable,
        retry_after_s=_retry_after_s(response) if retryable else None,
        upstream=Upstream(response.status, excerpt),
    )


def excerpt_of(data: bytes, response: HttpResponse, redactor: Redactor) -> str:
    """The beginning of a body for an error, redacted, at most 2,000 characters."""
    text = text_of(data[: 4 * EXCERPT_MAX_CHARS], response.header(b"content-type"), is_cut=True)
    return redactor.text(text)[:EXCERPT_MAX_CHARS]


def too_large(response: HttpResponse, max_bytes: int) -> ToolFailure:
    """For a body that must be whole and is not."""
    return refuse(
        ErrorKind.HTTP_TOO_LARGE,
        f"The answer of {response.url.host} is larger than {max_bytes} bytes. "
        "Raise maxBytes where the policy allows it, or ask for less.",
        max_bytes=max_bytes,
        announced_bytes=response.announced_bytes,
    )


def too_many_values(response: HttpResponse) -> ToolFailure:
    """For JSON of so many values that nobody reads it at once."""
    return refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"The JSON of {response.url.host} has too many small parts: more than {MOST.containers:,} arrays and objects, "
        f"{MOST.members:,} members or {MOST.separators:,} items. Ask for less, or use core/http.downloadFile.",
        retryable=False,
        reason="too_many_values",
    )


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
