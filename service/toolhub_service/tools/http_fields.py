"""The arguments and results that the HTTP tools share, with their bounds and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from toolhub_service.domain.tool import ArgumentRole, GuardedArgument
from toolhub_service.guards.urls import URL_MAX_BYTES
from toolhub_service.tools.tool import ToolInput, ToolOutput

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
    headers: RequestHeaders = field(default_factory=dict)
    body: TextBody = None
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
    max_bytes: MaxBytes = DEFAULT_MAX_BYTES


class AnswerHead(ToolOutput, frozen=True):
    """What a response says before its body."""

    url: str
    """Where the answer came from, after redirects."""
    status: int
    headers: dict[str, str]
