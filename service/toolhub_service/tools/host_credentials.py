"""Requests of the built-in HTTP tools with their caller's own credential, at the hosts for which callers have one.

It goes to the origin (scheme, host and port) that the operator has named and to no other: what a redirect leads to
elsewhere gets nothing of it (`cross_origin_headers`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Protocol

from msgspec import structs

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import EgressClient, HttpRequest, HttpResponse


class HostCredential(Protocol):
    """For one caller's requests to one host. Never shown."""

    @property
    def header(self) -> str:
        """Lower case."""

    @property
    def value(self) -> str:
        """Of the header, whole."""

    @property
    def secret(self) -> str:
        """What of it must not be seen in an answer."""


class HostCredentials(Protocol):
    """Callers' own credentials of hosts, by the names that the operator gives to the hosts."""

    def name_at(self, url: ParsedUrl) -> str:
        """Of the host there; empty: none for which callers have credentials."""

    async def of(self, principal: Principal, name: str) -> HostCredential | None:
        """The caller's; None: it has none, and is served all the same. Raises ToolFailure."""

    async def renewed(self, principal: Principal, name: str, used: str) -> HostCredential | None:
        """Another one than that secret, which the host does not take; None: there is none. Raises ToolFailure."""

    def refused(self, name: str) -> ToolFailure:
        """The host does not take the caller's credential, also after a refresh where there is one."""


def named_at(hosts: HostCredentials | None, url: str) -> str:
    """The name of the host whose credentials a request to the URL carries; empty: it carries none."""
    if hosts is None:
        return ""
    try:
        return hosts.name_at(parse_url(url))
    except ToolFailure:
        return ""  # the request will be refused, and say why


@asynccontextmanager
async def opened_as_caller(
    client: EgressClient,
    hosts: HostCredentials,
    request: HttpRequest,
    context: ToolContext,
    *,
    deadline_s: float,
    fair_s: float = 0.0,
) -> AsyncIterator[HttpResponse]:
    """As `EgressClient.open`, for the call's principal. A 401 comes before anything has run: the request is sent once
    more where the credential can be renewed. Raises ToolFailure PERMISSION_DENIED, too."""
    egress = context.constraints.egress
    name = named_at(hosts, request.url)
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
    used = await hosts.renewed(principal, name, used.secret)
    if used is None:
        raise hosts.refused(name)
    carrying = _carrying(request, used, name, context)
    async with client.open(carrying, egress, deadline_s=deadline_s, fair_s=fair_s) as response:
        if _is_refused(response):
            raise hosts.refused(name)
        yield response


def _carrying(request: HttpRequest, credential: HostCredential, name: str, context: ToolContext) -> HttpRequest:
    """Whoever writes the call must not choose as whom the caller is known there."""
    # Underscores count as hyphens, because some servers read them so.
    header = credential.header.replace("_", "-")
    if any(field.replace("_", "-") == header for field, _ in request.headers):
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"Leave out the header {credential.header}: the hub sends the caller's own credential for {name}.",
        )
    context.hide(credential.secret, credential.value)
    return structs.replace(request, headers=(*request.headers, (credential.header, credential.value)))


def _is_refused(response: HttpResponse) -> bool:
    # Behind a redirect the first host has done what it was asked, and the last one may never have seen the credential.
    return response.status == HTTPStatus.UNAUTHORIZED and not response.redirects
