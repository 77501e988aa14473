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
        args: {root_dir: papers}
      crm:
        kind: n8n
        url: https://n8n.example.com
        api_key: {file: /run/secrets/n8n}
        workflows: {send_message: {webhook: send-message, input_schema: {type: object}}}
      images:
        kind: comfyui
        url: http://gpu-1:8188
        templates: [/etc/toolhub/comfyui]

A running hub follows the file; an invalid one keeps the sources there are. Files and folders that are not absolute
count from the file's own folder.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.settings.document import Section
from toolhub_service.settings.source_terms import ClientTls, Source, Value
from toolhub_service.settings.workflow_sources import ComfyUiSource, N8nSource

SourceName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
SOURCES_MAX = 64


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


AnySource = McpSource | LangChainSource | N8nSource | ComfyUiSource


class SourcesDocument(Section, frozen=True):
    sources: Annotated[dict[SourceName, AnySource], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)
