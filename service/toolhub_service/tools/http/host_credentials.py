"""Requests of the built-in HTTP tools with their caller's own credential, to hosts for which callers have one.

It is sent only to the origin (scheme, host and port) that the operator has named, not to another origin after a
redirect (`cross_origin_headers`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Protocol

from msgspec import structs

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.tools.context import ToolContext


class HostCredential(Protocol):
    """The credential of one caller for one host. Its repr never shows it."""

    @property
    def header(self) -> str:
        """Return the header's name in lower case."""

    @property
    def value(self) -> str:
        """Return the whole value of the header."""

    @property
    def secret(self) -> str:
        """Return the part that must be hidden in answers."""


class HostCredentials(Protocol):
    """Callers' own credentials of hosts, by the names that the operator gives to the hosts."""

    def name_at(self, url: ParsedUrl) -> str:
        """Return the name of the host at the URL; empty: callers have no credentials for it."""

    async def of(self, principal: Principal, name: str) -> HostCredential | None:
        """Return the caller's credential; None where callers without one are served as well. Raises ToolFailure."""

    async def renew(self, principal: Principal, name: str, used: str) -> HostCredential | None:
        """Return another credential than the secret, which the host rejects; None: there is none. Raises
        ToolFailure."""

    def refusal(self, name: str) -> ToolFailure:
        """The host rejects the caller's credential, even after a refresh where refreshing is possible."""


def credential_name_at(hosts: HostCredentials | None, url: str) -> str:
    """Return the name of the host whose credential a request to the URL carries; empty: none."""
    if hosts is None:
        return ""
    try:
        return hosts.name_at(parse_url(url))
    except ToolFailure:
        return ""  # the request will be refused with the reason


@asynccontextmanager
async def open_as_caller(
    client: EgressClient,
    hosts: HostCredentials,
    request: HttpRequest,
    context: ToolContext,
    *,
    deadline_s: float,
    fair_s: float = 0.0,
) -> AsyncIterator[HttpResponse]:
    """Do the same as `EgressClient.open`, for the call's principal. A host answers 401 before anything has run: the
    request is sent once more if the credential can be renewed. Raises ToolFailure PERMISSION_DENIED too."""
    egress = context.constraints.egress
    name = credential_name_at(hosts, request.url)
    principal = context.call.principal if name and context.call is not None else None
    used = await hosts.of(principal, name) if principal is not None else None
    if principal is None or used is None:
        async with client.open(request, egress, deadline_s=deadline_s, fair_s=fair_s) as response:
            yield response
        return
    carrying = _carrying(request, used, name, context)
    async with client.open(carrying, egress, deadline_s=deadline_s, fair_s=fair_s) as response:
        if not _is_refused(response):
            yield response
            return
    used = await hosts.renew(principal, name, used.secret)
    if used is None:
        raise hosts.refusal(name)
    carrying = _carrying(request, used, name, context)
    async with client.open(carrying, egress, deadline_s=deadline_s, fair_s=fair_s) as response:
        if _is_refused(response):
            raise hosts.refusal(name)
        yield response


def _carrying(request: HttpRequest, credential: HostCredential, name: str, context: ToolContext) -> HttpRequest:
    """Add the credential. Arguments of a call must not choose the caller's identity there."""
    # Underscores count as hyphens, because some servers treat them so.
    header = credential.header.replace("_", "-")
    if any(field.replace("_", "-") == header for field, _ in request.headers):
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"Leave out the header {credential.header}: the hub sends the caller's own credential for {name}.",
        )
    context.hide(credential.secret, credential.value)
    return structs.replace(request, headers=(*request.headers, (credential.header, credential.value)))


def _is_refused(response: HttpResponse) -> bool:
    # After a redirect the first host has processed the request, and the last one may never have seen the credential.
    return response.status == HTTPStatus.UNAUTHORIZED and not response.redirects
