"""What HTTP tools ask: the request of arguments that have passed the schema, its effect in words, its upstream."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.headers import Headers, judge_request_headers
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import parse_url
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_fields import FetchInput


def fetch_request(args: FetchInput, *, content_type: str, accept: str) -> HttpRequest:
    """The request of a tool that fetches; `content_type` is that of its body. Raises ToolFailure INVALID_INPUT."""
    if args.body is not None and args.method == "GET":
        raise refuse_body("GET")
    headers = headers_with_type(args.headers, content_type if args.body is not None else "")
    body = (args.body or "").encode("utf-8", "replace")
    return HttpRequest(args.url, args.method, headers, body, accept=accept)


def headers_with_type(headers: dict[str, str], content_type: str) -> Headers:
    """The caller's headers, judged, and a Content-Type when a body needs one and they name none."""
    judged = judge_request_headers(headers)
    if not content_type or any(name == "content-type" for name, _ in judged):
        return judged
    return (*judged, ("content-type", content_type))


def refuse_body(method: str) -> ToolFailure:
    """For a body with a method that has none (RFC 9110 §9.3.1)."""
    return refuse(ErrorKind.INVALID_INPUT, f"{method} takes no body. Leave the body out, or use POST.")


def effect_of(request: HttpRequest) -> str:
    """One sentence for a plan, without the secrets of the URL. Raises ToolFailure for a URL that is none."""
    what = f"{request.method} {shown_url(parse_url(request.url))}"
    return f"Send {what} with {len(request.body):,} bytes." if request.body else f"Send {what}."


def upstream_of(url: str) -> str:
    """The breaker a URL belongs to: its origin, such as `https://api.example.com`; empty for what is no URL."""
    try:
        parsed = parse_url(url)
    except ToolFailure:
        return ""
    return f"{parsed.scheme}://{parsed.authority}"
