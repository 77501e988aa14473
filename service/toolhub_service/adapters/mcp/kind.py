"""MCP as a kind of source: its section of sources.yaml, its rules, and how it is opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.adapters.source_config import (
    ClientTls,
    Section,
    Source,
    SourceInvalid,
    Value,
    check_web,
    named_values,
)
from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.tool import ToolKind


class ClientCredentials(Section, frozen=True):
    """OAuth 2.0 client credentials (RFC 6749 §4.4; MCP extension `oauth-client-credentials`), by a secret or a key."""

    client_id: Annotated[str, Meta(description="As the authorization server knows the hub.")]
    client_secret: Annotated[Value, Meta(description="Best a reference; or `private_key`.")] = ""
    private_key: Annotated[
        Value, Meta(description="PEM private key (RSA, EC, Ed25519) that signs who the hub is; best a file reference.")
    ] = ""
    signing_algorithm: Annotated[
        Literal["auto", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA"],
        Meta(description="With `private_key`; auto: as the key is, RS256 of an RSA key, ES256 of a P-256 one."),
    ] = "auto"
    audience: Annotated[
        str, Meta(description="With `private_key` and `token_url`: issuer that signatures are for; empty: `token_url`.")
    ] = ""
    token_url: Annotated[str, Meta(description="Token endpoint; empty: discovered from the server's metadata.")] = ""
    scopes: Annotated[tuple[str, ...], Meta(description="What the token is asked for.")] = ()


class McpSource(Source, frozen=True, tag="mcp"):
    """A server that speaks the Model Context Protocol: `command` for stdio, or `url` for streamable HTTP."""

    command: Annotated[str, Meta(description="Program that speaks MCP on stdin and stdout.")] = ""
    args: Annotated[tuple[Value, ...], Meta(description="Its arguments; no shell looks at them.")] = ()
    env: Annotated[
        dict[str, Value], Meta(description="Its environment, besides HOME, PATH, USER, SHELL, TERM, LOGNAME, LANG.")
    ] = msgspec.field(default_factory=dict)
    cwd: Annotated[
        str, Meta(description="Its working directory, from the folder of sources.yaml; empty: the hub's.")
    ] = ""
    url: Annotated[Value, Meta(description="http:// or https:// endpoint of streamable HTTP.")] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request.")] = msgspec.field(
        default_factory=dict
    )
    oauth: Annotated[ClientCredentials | None, Meta(description="Client credentials, with `url`.")] = None
    tls: Annotated[ClientTls, Meta(description="Certificates, with `url`.")] = ClientTls()
    origins: Annotated[
        tuple[str, ...], Meta(description="Further origins that may be dialled, such as that of the token endpoint.")
    ] = ()
    trust: Annotated[
        Literal["always", "first-use", "approval"],
        Meta(description="When a definition may be called: always, as first seen, or once a person has approved it."),
    ] = "first-use"
    protocol: Annotated[
        Literal["auto", "2025-11-25", "2026-07-28"], Meta(description="Protocol version; auto asks the server.")
    ] = "auto"
    elicitation: Annotated[
        Literal["decline", "ask", "defaults"],
        Meta(description="When the server asks a person: decline, ask for an approval, or answer with the defaults."),
    ] = "decline"
    connect_timeout_s: Annotated[float, Meta(description="Seconds to connect.", gt=0, le=300)] = 30.0
    max_message_bytes: Annotated[int, Meta(description="Largest message read from the server.", ge=1024)] = (
        8 * 1024 * 1024
    )


def _check(place: str, source: McpSource) -> None:
    if bool(source.command) == bool(source.url):
        raise SourceInvalid(f"{place}: needs exactly one of `command` and `url`")
    check_web(f"{place}.url", source.url)
    misplaced = ("headers", "oauth", "origins") if source.command else ("args", "env", "cwd")
    for key in misplaced:
        if getattr(source, key):
            raise SourceInvalid(f"{place}.{key}: means nothing with `{'command' if source.command else 'url'}`")
    if source.oauth is not None:
        _check_client(f"{place}.oauth", source.oauth)


def _check_client(place: str, client: ClientCredentials) -> None:
    if bool(client.client_secret) == bool(client.private_key):
        raise SourceInvalid(f"{place}: needs exactly one of `client_secret` and `private_key`")
    if client.client_secret and client.signing_algorithm != "auto":
        raise SourceInvalid(f"{place}.signing_algorithm: means nothing with `client_secret`")
    if client.audience and not (client.private_key and client.token_url):
        raise SourceInvalid(f"{place}.audience: means nothing without `private_key` and `token_url`")


def _values(source: McpSource) -> Iterator[tuple[str, Value]]:
    yield "url", source.url
    yield from named_values("headers", source.headers)
    yield from named_values("env", source.env)
    yield from ((f"args.{at}", value) for at, value in enumerate(source.args))
    if source.oauth is not None:
        yield "oauth.client_secret", source.oauth.client_secret
        yield "oauth.private_key", source.oauth.private_key


def _missing(source: McpSource, _trusted_namespaces: tuple[str, ...]) -> Iterator[str]:
    if source.command and shutil.which(source.command) is None:
        yield f"there is no program `{source.command}` on the path"


def _entry_of(_given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


MCP = SourceKind(
    ToolKind.MCP,
    McpSource,
    {ClientCredentials: "oauth"},
    _check,
    "toolhub_service.adapters.mcp.adapter:McpOpener",
    package="mcp",
    values=_values,
    files={McpSource: ("cwd",)},
    missing=_missing,
    entry_of=_entry_of,
)
