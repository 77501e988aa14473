"""sources.yaml: where tools come from besides the hub itself. Read by app and the command line only.

    sources:
      files:                                    # also the namespace of its tools: files/read_file
        command: npx
        args: [-y, "@modelcontextprotocol/server-filesystem", /srv/docs]
      github:
        url: https://mcp.example.com/mcp
        headers: {Authorization: {file: /run/secrets/github, prefix: "Bearer "}}
        trust: approval
        tools: {"get_*": {read_only: true}}
      desk:
        kind: langchain
        load: ["langchain_community.agent_toolkits:FileManagementToolkit"]

A running hub follows the file; an invalid one keeps the sources there are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.settings.document import Section

SourceName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
SOURCES_MAX = 64


class SecretRef(Section, frozen=True):
    """A value that does not stand in the file."""

    env: Annotated[str, Meta(description="Environment variable of the hub that holds it.")] = ""
    file: Annotated[str, Meta(description="File that holds it; white space at its end is cut off.")] = ""
    prefix: Annotated[str, Meta(description='What is put before it, such as "Bearer ".')] = ""


Value = str | SecretRef


class ToolTerms(Section, frozen=True):
    """What the operator says of tools whose own names match; what is left out stays as the source says, or safer."""

    offered: Annotated[bool, Meta(description="false: not offered at all.")] = True
    read_only: Annotated[
        bool | None, Meta(description="true: calls change nothing. A source is not believed when it says so.")
    ] = None
    idempotent: Annotated[bool | None, Meta(description="true: calling twice does what calling once does.")] = None
    destructive: Annotated[bool | None, Meta(description="false: not destructive, whatever the source says.")] = None
    capabilities: Annotated[
        tuple[str, ...] | None, Meta(description="What a principal must hold, instead of the source's.")
    ] = None
    timeout_s: Annotated[float, Meta(description="Seconds a call gets.", gt=0)] | None = None
    error_pattern: Annotated[
        str, Meta(description="Linear-time regular expression: a text result that it finds is an error.")
    ] = ""


class Source(Section, frozen=True, tag_field="kind"):
    enabled: Annotated[bool, Meta(description="false: known and not read.")] = True
    capabilities: Annotated[
        tuple[str, ...], Meta(description="What a principal must hold to call its tools; empty: `<kind>:<name>`.")
    ] = ()
    tags: Annotated[tuple[str, ...], Meta(description="Tags of all its tools.")] = ()
    timeout_s: Annotated[float, Meta(description="Seconds a call of its tools gets.", gt=0)] = 60.0
    max_concurrency: Annotated[int, Meta(description="Calls in flight at once; 0: the hub's default.", ge=0)] = 0
    refresh_s: Annotated[
        float, Meta(description="Seconds between readings when the source names no time (30 to 300).", ge=1)
    ] = 60.0
    tools: Annotated[
        dict[str, ToolTerms], Meta(description="Terms by glob over the tools' own names; later ones win.")
    ] = msgspec.field(default_factory=dict)


class ClientTls(Section, frozen=True):
    ca_file: Annotated[str, Meta(description="PEM CAs to trust; empty: the system's.")] = ""
    certificate_file: Annotated[str, Meta(description="PEM certificate that the hub shows (mTLS).")] = ""
    key_file: Annotated[str, Meta(description="PEM private key of the certificate.")] = ""


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
    cwd: Annotated[str, Meta(description="Its working directory; empty: the hub's.")] = ""
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


class LangChainSource(Source, frozen=True, tag="langchain"):
    """Python code that gives LangChain tools. Its modules must lie in `tools.trusted_namespaces`."""

    load: Annotated[
        tuple[str, ...],
        Meta(description="package.module:name of a tool, a list of tools, a toolkit, or a function that gives one."),
    ] = ()
    args: Annotated[dict[str, Any], Meta(description="Keyword arguments of the classes and functions in `load`.")] = (
        msgspec.field(default_factory=dict)
    )
    entry_points: Annotated[
        tuple[str, ...], Meta(description="Names of `toolhub.langchain` entry points; `*`: all that are installed.")
    ] = ()
    inject: Annotated[
        dict[str, Literal["principal", "user_id", "agent_id", "request_id", "task_id", "session_id", "call_id"]],
        Meta(description="Injected arguments by name, and what of the call is put into them."),
    ] = msgspec.field(default_factory=dict)
    processes: Annotated[int, Meta(description="Worker processes for tools without async code.", ge=1, le=64)] = 2


AnySource = McpSource | LangChainSource


class SourcesDocument(Section, frozen=True):
    sources: Annotated[dict[SourceName, AnySource], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)
