"""Where a redirect leads, judged like a first request (RFC 9110 §15.4)."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub_service.domain.constraints import EgressRule
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.headers import Headers, bodiless_headers, cross_origin_headers
from toolhub_service.guards.urls import JudgedUrl, join_url, judge_url

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain."""

    url: JudgedUrl
    method: str
    headers: Headers
    body: bytes


def next_hop(hop: Hop, status: int, location: str, egress: tuple[EgressRule, ...]) -> Hop | None:
    """The request that a response asks for; None when it is no redirect.

    Raises:
        ToolFailure: HTTP_DISALLOWED_HOST when the target is refused or leads from https to http.
    """
    if status not in _REDIRECTS or not location:
        return None
    method = _method_after(hop.method, status)
    try:
        url = judge_url(join_url(hop.url, location), method, egress)
    except ToolFailure as failure:
        raise _refused(hop, failure.error.message, failure.error.details.get("host")) from None
    if hop.url.scheme == "https" and url.scheme == "http":
        raise _refused(hop, "It leads from https to http.", url.host)
    headers = hop.headers if url.origin == hop.url.origin else cross_origin_headers(hop.headers)
    if method == hop.method:
        return Hop(url, method, headers, hop.body)
    return Hop(url, method, bodiless_headers(headers), b"")


def too_many_redirects(url: JudgedUrl, redirects_max: int) -> ToolFailure:
    return refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"There were more than {redirects_max} redirects, the last by {url.host}. Request the final URL itself.",
        retryable=False,
        host=url.host,
    )


def _method_after(method: str, status: int) -> str:
    if status == 303 and method != "HEAD":
        return "GET"
    if status in {301, 302} and method == "POST":
        return "GET"
    return method


def _refused(hop: Hop, reason: str, host: object) -> ToolFailure:
    return refuse(
        ErrorKind.HTTP_DISALLOWED_HOST,
        f"{hop.url.host} redirects to a place that may not be requested. {reason}",
        host=host if isinstance(host, str) else "",
        redirected_from=hop.url.host,
    )
