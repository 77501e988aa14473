"""What the operator said of one MCP server, as plain values: secrets resolved, nothing tried yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from urllib.parse import urlsplit

from toolhub_service.adapters.upstream import NO_TLS_FILES, TlsTerms
from toolhub_service.guards.secrets import Redactor

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]
Elicitation = Literal["decline", "ask", "defaults"]

_ENDPOINT_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class StdioTerms:
    """A program that speaks MCP on its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its environment besides the few names that it gets from the hub's; values may be secrets."""
    cwd: str = ""
    """Empty: the hub's."""


@dataclass(frozen=True, slots=True)
class OAuthTerms:
    """OAuth 2.0 client credentials (RFC 6749 §4.4)."""

    client_id: str
    client_secret: str = field(default="", repr=False)
    token_url: str = ""
    """Empty: discovered from the server's metadata."""
    scopes: tuple[str, ...] = ()
    private_key: str = field(default="", repr=False)
    """PEM; in the place of the secret."""
    signing_algorithm: str = "auto"
    audience: str = ""
    """Whom assertions are for, with a `token_url`; empty: it."""


@dataclass(frozen=True, slots=True)
class HttpTerms:
    """An endpoint of streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request to the server, and never to a token endpoint; values may be secrets."""
    oauth: OAuthTerms | None = None
    tls: TlsTerms = NO_TLS_FILES
    origins: tuple[str, ...] = ()
    """`scheme://host[:port]` that may be dialled besides those of the URL and of `oauth.token_url`."""


@dataclass(frozen=True)
class McpTerms:
    """One server: where it is and how it is spoken to."""

    name: str
    """Of the source."""
    where: StdioTerms | HttpTerms
    protocol: Protocol = "auto"
    elicitation: Elicitation = "decline"
    connect_timeout_s: float = 30.0
    max_message_bytes: int = 8 * 1024 * 1024
    """The largest single message read from the server, inflated."""

    @cached_property
    def endpoint(self) -> str:
        """Where it is, for people and records: no credentials, at most 300 characters."""
        shown = _shown_url(self.where.url) if isinstance(self.where, HttpTerms) else _shown_argv(self.where)
        return shown if len(shown) <= _ENDPOINT_MAX_CHARS else shown[: _ENDPOINT_MAX_CHARS - 1] + "…"

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be shown: those of the environment, the headers and the client."""
        if isinstance(self.where, StdioTerms):
            return tuple(self.where.env.values())
        oauth = self.where.oauth
        own = (oauth.client_secret, oauth.private_key, *oauth.private_key.splitlines()[1:-1]) if oauth else ()
        values = self.where.headers.values()
        return (*own, *values, *(value.rpartition(" ")[2] for value in values))


def _shown_url(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _shown_argv(where: StdioTerms) -> str:
    argv = [where.command, *where.args]
    return "stdio:" + " ".join(Redactor(tuple(where.env.values())).value(argv))
