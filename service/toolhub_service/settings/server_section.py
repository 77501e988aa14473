"""Knobs of what listens: gRPC, its TLS, and the MCP endpoint."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from toolhub_service.sections.source_config import Section


class McpEndpoint(Section, frozen=True):
    enabled: Annotated[bool, Meta(description="Serve MCP over HTTP, at /mcp.")] = True
    listen: Annotated[
        str, Meta(description="host:port of MCP over HTTP, for which server.tls holds too; port 0 picks a free one.")
    ] = "127.0.0.1:50052"
    public_url: Annotated[
        str,
        Meta(
            description="URL by which clients reach the endpoint, such as https://hub.example.com/mcp: tokens must be "
            "made for it, and clients learn there who issues them; empty: neither."
        ),
    ] = ""
    tools: Annotated[
        Literal["auto", "full", "search", "program"],
        Meta(
            description="What clients are shown: all tools, a search for them, a search and programs, or what "
            "full_max_tokens decides."
        ),
    ] = "auto"
    full_max_tokens: Annotated[
        int, Meta(description="With tools: auto, the largest list that is shown whole, at 4 bytes a token.", ge=0)
    ] = 20_000
    text_max_bytes: Annotated[
        int,
        Meta(
            description="Most text of a result in bytes; the whole of a longer one is a resource that it links to. "
            "`mcp_text_max_bytes` of a source takes precedence.",
            ge=1_024,
            le=262_144,
        ),
    ] = 65_536
    unprefixed_sources: Annotated[
        tuple[str, ...],
        Meta(
            description="Sources whose tools are listed without the source's name before theirs, such as `search` for "
            "`web__search`; `*`: all. If two names collide, both keep their prefix."
        ),
    ] = ()
    approval_url: Annotated[
        str,
        Meta(
            description="Page where people decide approvals, such as https://ops.example/approvals/{approval_id}, for "
            "users of clients that can open links; empty: none."
        ),
    ] = ""
    state_key_file: Annotated[
        str,
        Meta(
            description="File with 64 hexadecimal digits: the key that seals what MCP clients bring back with a call, "
            "the same for all hubs of one address; empty: derived from the key that seals plans, which hubs of one "
            "Redis or PostgreSQL share."
        ),
    ] = ""
    # Lists, and never a pattern: a page can reach loopback by any name that its owner resolves there (DNS rebinding).
    allowed_hosts: Annotated[
        tuple[str, ...], Meta(description="Further names, with or without a port, that a Host header may hold.")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins, such as https://app.example, whose pages may call and read answers (CORS)."),
    ] = ()
    max_body_bytes: Annotated[int, Meta(description="Largest request.", ge=1_024, le=64 * 1024 * 1024)] = (
        4 * 1024 * 1024
    )
    max_connections: Annotated[int, Meta(description="Connections per process.", ge=1, le=1_000_000)] = 2_000
    max_streams: Annotated[
        int, Meta(description="Streams that only listen for changes, per process.", ge=1, le=1_000_000)
    ] = 1_000
    max_sessions: Annotated[
        int, Meta(description="Sessions of clients that speak 2025-11-25 or older, per process.", ge=1, le=1_000_000)
    ] = 1_000
    session_idle_s: Annotated[
        float, Meta(description="Seconds after which such a session without requests is ended.", gt=0, le=86_400)
    ] = 1_800.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        url = self.approval_url
        # Clients open this link for a person: no other scheme, and only a page that can tell which approval.
        if url and not (url.startswith(("https://", "http://")) and "{approval_id}" in url):
            raise ValueError("approval_url must be an http(s) URL with {approval_id} in it")


class Tls(Section, frozen=True):
    certificate_file: Annotated[str, Meta(description="PEM certificate chain; empty: plaintext.")] = ""
    key_file: Annotated[str, Meta(description="PEM private key of the certificate.")] = ""
    client_ca_file: Annotated[str, Meta(description="PEM CAs; set: clients must show a certificate (mTLS).")] = ""
    # Its own port, because grpc-python asks all clients of a port for a certificate, or none (decision 0054).
    keys_listen: Annotated[
        str, Meta(description="Second host:port of gRPC, where no certificate is asked for: for API keys and tokens.")
    ] = ""
    # grpc-python cannot refuse a handshake by its TLS version.
    min_version: Annotated[
        Literal["1.2", "1.3"],
        Meta(description="Lowest version of TLS; over gRPC RPCs by an older one are refused, not its handshake."),
    ] = "1.2"


class Server(Section, frozen=True):
    listen: Annotated[str, Meta(description="host:port, or unix:/path; port 0 picks a free one.")] = "127.0.0.1:50051"
    workers: Annotated[int, Meta(description="Processes on the port (SO_REUSEPORT).", ge=1, le=256)] = 1
    max_in_flight: Annotated[
        int, Meta(description="RPCs, and calls in sessions, in flight per process; more are refused.", ge=1, le=100_000)
    ] = 1_000
    max_watches: Annotated[
        int,
        Meta(
            description="Watch streams (jobs, approvals) per process; one principal gets at most half.",
            ge=1,
            le=1_000_000,
        ),
    ] = 10_000
    drain_s: Annotated[
        float, Meta(description="Seconds for running calls to finish after SIGTERM.", ge=0, le=3_600)
    ] = 10.0
    drain_notice_s: Annotated[
        float, Meta(description="Seconds between NOT_SERVING and refusing work, for a mesh to notice.", ge=0, le=60)
    ] = 0.0
    max_connection_age_s: Annotated[
        float,
        Meta(
            description="Seconds after which clients must reconnect, so that load spreads; 0: never, or 600 where "
            "auth.modes has spiffe or xfcc.",
            ge=0,
        ),
    ] = 0.0
    max_connection_idle_s: Annotated[
        float, Meta(description="Seconds after which a connection without RPCs is closed.", ge=1, le=86_400)
    ] = 300.0
    max_connections: Annotated[
        int,
        Meta(description="Connections per process; fewer where the limit on open files is lower.", ge=1, le=1_000_000),
    ] = 10_000
    reflection: Annotated[bool, Meta(description="Serve gRPC reflection v1 and v1alpha.")] = True
    allow_plaintext: Annotated[
        bool, Meta(description="Accept API keys without TLS beyond loopback: only where a mesh or proxy encrypts.")
    ] = False
    tls: Tls = Tls()
    mcp: McpEndpoint = McpEndpoint()
