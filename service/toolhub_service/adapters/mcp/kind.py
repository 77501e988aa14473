"""MCP as a kind of source: its section of sources.yaml, its rules, how it is opened, and its terms.

The section (`McpSource`) holds references to secrets; the terms (`McpTerms`) are made of it with secrets resolved.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from toolhub_service.adapters.caller_auth import NO_AUTH, SourceAuth, auth_values, check_auth
from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sections.source_config import (
    NO_TLS_FILES,
    ClientTls,
    Section,
    Source,
    SourceInvalid,
    Value,
    check_web,
    named_values,
    secrets_of_url,
)

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]
Elicitation = Literal["decline", "ask", "defaults"]
Relay = Literal["elicitation", "sampling", "roots", "logging"]

_ENDPOINT_MAX_CHARS = 300

# Programs that fetch what they run; they need these variables behind a proxy, a private CA or a private registry.
_LAUNCHERS = frozenset({"bunx", "npm", "npx", "pipx", "pnpm", "uv", "uvx"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})  # they pull the image first
CONNECT_S = 30.0
INSTALL_S = 300.0
_OF_EITHER_CASE = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("NPM_CONFIG_CAFILE", "NPM_CONFIG_HTTPS_PROXY", "NPM_CONFIG_NOPROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_REGISTRY"),
    "NPM_CONFIG_USERCONFIG",
)
LAUNCHER_ENV = (
    *(name for upper in _OF_EITHER_CASE for name in (upper, upper.lower())),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("PIP_CERT", "PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_PROXY", "PIP_TRUSTED_HOST"),
    *("UV_CONFIG_FILE", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
)


class ClientCredentials(Section, frozen=True):
    """OAuth 2.0 client credentials (RFC 6749 §4.4; MCP extension `oauth-client-credentials`), by a secret or a key."""

    client_id: Annotated[str, Meta(description="Client ID of the hub at the authorization server.")]
    client_secret: Annotated[
        Value, Meta(description="Client secret, preferably a reference; or use `private_key`.")
    ] = ""
    private_key: Annotated[
        Value, Meta(description="PEM private key (RSA, EC, Ed25519) for private_key_jwt; preferably a file reference.")
    ] = ""
    signing_algorithm: Annotated[
        Literal["auto", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA"],
        Meta(description="With `private_key`; auto: by the type of key, such as RS256 for RSA, ES256 for P-256."),
    ] = "auto"
    audience: Annotated[
        str,
        Meta(description="With `private_key` and `token_url`: audience (issuer) of the assertion; empty: `token_url`."),
    ] = ""
    token_url: Annotated[str, Meta(description="Token endpoint; empty: discovered from the server's metadata.")] = ""
    scopes: Annotated[tuple[str, ...], Meta(description="Scopes to request.")] = ()


class LoginClient(Section, frozen=True):
    """How an operator logs the source in (`toolhub sources login`), where its server does not tell all of it."""

    issuer: Annotated[
        str, Meta(description="Issuer of the authorization server; empty: that of `auth.per_user`, else the server's.")
    ] = ""
    client_id: Annotated[
        str, Meta(description="The hub's client there, or the https URL of its metadata; empty: it registers itself.")
    ] = ""
    client_secret: Annotated[Value, Meta(description="Its secret, preferably a reference; with `issuer`.")] = ""
    scopes: Annotated[tuple[str, ...], Meta(description="Scopes to ask for; empty: those that the server names.")] = ()
    redirect_uris: Annotated[
        tuple[str, ...], Meta(description="Where logins may lead back to, besides loopback addresses.")
    ] = ()


class McpSource(Source, frozen=True, tag="mcp"):
    """A server that speaks the Model Context Protocol: `command` for stdio, or `url` for streamable HTTP."""

    command: Annotated[str, Meta(description="Program that speaks MCP on stdin and stdout.")] = ""
    args: Annotated[tuple[Value, ...], Meta(description="Its arguments; no shell interprets them.")] = ()
    env: Annotated[
        dict[str, Value], Meta(description="Its environment, besides HOME, PATH, USER, SHELL, TERM, LOGNAME, LANG.")
    ] = msgspec.field(default_factory=dict)
    pass_env: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Variables passed on from the hub's environment; default: those of proxies, CAs, npm, pip "
            "and uv for npx, uvx and similar launchers, none for other programs."
        ),
    ] = None
    cwd: Annotated[
        str, Meta(description="Its working directory, from the folder of sources.yaml; empty: the hub's.")
    ] = ""
    url: Annotated[Value, Meta(description="http:// or https:// endpoint of streamable HTTP.")] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request.")] = msgspec.field(
        default_factory=dict
    )
    oauth: Annotated[ClientCredentials | None, Meta(description="Client credentials, with `url`.")] = None
    login: Annotated[LoginClient | None, Meta(description="Client of `toolhub sources login`, with `url`.")] = None
    auth: Annotated[SourceAuth, Meta(description="Whose credentials calls are made with; with `url`.")] = NO_AUTH
    tls: Annotated[ClientTls, Meta(description="Certificates, with `url`.")] = ClientTls()
    origins: Annotated[
        tuple[str, ...],
        Meta(description="Further origins that the hub may connect to, such as that of the token endpoint."),
    ] = ()
    trust: Annotated[
        Literal["always", "first-use", "approval"],
        Meta(description="When a definition may be called: always, as first seen, or once a person has approved it."),
    ] = "first-use"
    pins: Annotated[
        Literal["all", "schema"],
        Meta(
            description="What of a definition must not change without a person: all of it, or schemas, hints and names "
            "only. New titles and descriptions are then accepted, unless they have serious findings, and the "
            "difference is kept."
        ),
    ] = "all"
    protocol: Annotated[Protocol, Meta(description="Protocol version; auto asks the server.")] = "auto"
    elicitation: Annotated[
        Elicitation,
        Meta(description="When the server asks a person: decline, ask for an approval, or answer with the defaults."),
    ] = "decline"
    relay: Annotated[
        tuple[Relay, ...],
        Meta(
            description="What the server may ask of, or tell, the MCP client that makes a call, where that can answer: "
            "elicitation (its user), sampling (its model), roots (its folders), logging."
        ),
    ] = ()
    timeout_s: Annotated[
        float,
        Meta(
            description="Time limit of a call of its tools in seconds, also within a job; 0: 300, and 3600 within a "
            "job, as long as the call reports progress (`idle_timeout_s`).",
            ge=0,
        ),
    ] = 0.0
    idle_timeout_s: Annotated[
        float,
        Meta(
            description="Seconds after which a call ends that neither answers nor reports progress; 0: 60 where "
            "`timeout_s` is 0, else no limit.",
            ge=0,
        ),
    ] = 0.0
    connect_timeout_s: Annotated[
        float,
        Meta(description="Seconds to connect; 0: 30, and 300 for a launcher, which may install first.", ge=0, le=1_800),
    ] = 0.0
    max_message_bytes: Annotated[int, Meta(description="Largest message read from the server.", ge=1024)] = (
        8 * 1024 * 1024
    )


def sse_advice(url: str) -> str:
    """Return what to do about an address that looks like the transport of 2024; empty for any other."""
    parts = urlsplit(url)
    if not parts.path.rstrip("/").endswith("/sse"):
        return ""
    beside = parts.path.rstrip("/").removesuffix("/sse") + "/mcp"
    return (
        "`url` ends in /sse, as addresses of the SSE transport of 2024 do, which is not supported; most such servers "
        f"have streamable HTTP beside it: try {parts.scheme}://{parts.netloc.rpartition('@')[2]}{beside}"
    )


def _check_source(place: str, source: McpSource) -> None:
    if bool(source.command) == bool(source.url):
        raise SourceInvalid(f"{place}: needs exactly one of `command` and `url`")
    check_web(f"{place}.url", source.url)
    check_auth(f"{place}.auth", source.auth)
    if source.command and source.auth.per_user is not None:
        raise SourceInvalid(f"{place}.auth.per_user: not allowed with `command`: one program serves all callers")
    misplaced = ("headers", "oauth", "login", "origins") if source.command else ("args", "env", "pass_env", "cwd")
    for key in misplaced:
        if getattr(source, key):
            raise SourceInvalid(f"{place}.{key}: not allowed with `{'command' if source.command else 'url'}`")
    if source.oauth is not None:
        _check_client(f"{place}.oauth", source.oauth)
    if source.login is not None:
        _check_login(place, source, source.login)


def _check_login(place: str, source: McpSource, login: LoginClient) -> None:
    if source.oauth is not None:
        raise SourceInvalid(f"{place}.login: not allowed with `oauth`, by which the hub gets tokens without a person")
    if login.client_secret and not (login.client_id and login.issuer):
        # Otherwise the secret would be sent to any issuer that the server names (SEP-2352).
        raise SourceInvalid(f"{place}.login.client_secret: needs `client_id` and `issuer`")
    if login.issuer and not login.issuer.startswith(("http://", "https://")):
        raise SourceInvalid(f"{place}.login.issuer: must begin with https://")


def _check_client(place: str, client: ClientCredentials) -> None:
    if bool(client.client_secret) == bool(client.private_key):
        raise SourceInvalid(f"{place}: needs exactly one of `client_secret` and `private_key`")
    if client.client_secret and client.signing_algorithm != "auto":
        raise SourceInvalid(f"{place}.signing_algorithm: not allowed with `client_secret`")
    if client.audience and not (client.private_key and client.token_url):
        raise SourceInvalid(f"{place}.audience: requires `private_key` and `token_url`")


def _values(source: McpSource) -> Iterator[tuple[str, Value]]:
    yield "url", source.url
    yield from named_values("headers", source.headers)
    yield from auth_values(source.auth)
    yield from named_values("env", source.env)
    yield from ((f"args.{at}", value) for at, value in enumerate(source.args))
    if source.oauth is not None:
        yield "oauth.client_secret", source.oauth.client_secret
        yield "oauth.private_key", source.oauth.private_key
    if source.login is not None:
        yield "login.client_secret", source.login.client_secret


def command_advice(command: str) -> str:
    """Return what is wrong with the text of a command whose program was not found; empty when nothing is."""
    if command.startswith("~"):
        return "`~` is not expanded in `command`: write the absolute path."
    first, *others = command.split()
    if others and shutil.which(first) is not None:
        return f"`command` is only the program: write `command: {first}`, and the rest into `args`."
    return ""


def _missing(source: McpSource, _trusted_namespaces: tuple[str, ...]) -> Iterator[str]:
    if source.command and shutil.which(source.command) is None:
        advice = command_advice(source.command)
        yield f"the program `{source.command}` is not on the PATH{f'. {advice}' if advice else ''}"


def _remarks(source: McpSource) -> Iterator[str]:
    if isinstance(source.url, str) and (advice := sse_advice(source.url)):
        yield advice


@dataclass(frozen=True, slots=True)
class StdioTerms:
    """A program that speaks MCP on its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables besides the few passed from the hub's environment; values may be secrets."""
    cwd: str = ""
    """Empty: the hub's working directory."""
    pass_env: tuple[str, ...] | None = None
    """Names of further variables passed from the hub's environment; None: those that its program needs."""

    @property
    def is_launcher(self) -> bool:
        """Return whether the program fetches what it runs."""
        return Path(self.command).name in _LAUNCHERS

    @property
    def may_install(self) -> bool:
        """Return whether its first start may take minutes."""
        runs_image = Path(self.command).name in _CONTAINERS and "run" in self.args
        return self.is_launcher or runs_image

    @property
    def variables_from_hub(self) -> dict[str, str]:
        """Return the variables passed from the hub's environment besides those that every program gets."""
        names = (LAUNCHER_ENV if self.is_launcher else ()) if self.pass_env is None else self.pass_env
        return {name: os.environ[name] for name in names if name in os.environ}


@dataclass(frozen=True, slots=True)
class OAuthTerms:
    """OAuth 2.0 client credentials (RFC 6749 §4.4)."""

    client_id: str
    client_secret: str = field(default="", repr=False)
    token_url: str = ""
    """Empty: discovered from the server's metadata."""
    scopes: tuple[str, ...] = ()
    private_key: str = field(default="", repr=False)
    """PEM; used instead of the secret."""
    signing_algorithm: str = "auto"
    audience: str = ""
    """Audience of assertions with a `token_url`; empty: that URL."""


@dataclass(frozen=True, slots=True)
class HttpTerms:
    """An endpoint of streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request to the server, never to a token endpoint; values may be secrets."""
    oauth: OAuthTerms | None = None
    tls: ClientTls = NO_TLS_FILES
    origins: tuple[str, ...] = ()
    """Allowed `scheme://host[:port]` besides those of the URL and of `oauth.token_url`."""

    def has_credentials(self, header: str = "") -> bool:
        """Return whether the configuration holds what identifies the hub at the server; `header`: one that does so
        besides Authorization."""
        named = {name.lower() for name in self.headers}
        return self.oauth is not None or bool(named & {"authorization", header}) or "@" in urlsplit(self.url).netloc


@dataclass(frozen=True)
class McpTerms:
    """One server: its address and how to talk to it."""

    name: str
    """Name of the source."""
    where: StdioTerms | HttpTerms
    protocol: Protocol = "auto"
    elicitation: Elicitation = "decline"
    relay: frozenset[Relay] = frozenset()
    connect_timeout_s: float = 30.0
    max_message_bytes: int = 8 * 1024 * 1024
    """The largest single message accepted from the server, decompressed."""

    @cached_property
    def endpoint(self) -> str:
        """Return the address for people and records: without credentials, at most 300 characters."""
        where = self.where
        if isinstance(where, HttpTerms):
            parts = urlsplit(where.url)
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # a query may hold a key
        else:
            argv = [where.command, *where.args]
            shown = "stdio:" + " ".join(Redactor(tuple(where.env.values())).value(argv))
        return shown if len(shown) <= _ENDPOINT_MAX_CHARS else shown[: _ENDPOINT_MAX_CHARS - 1] + "…"

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that must never be shown: those of the environment, the headers and the client."""
        if isinstance(self.where, StdioTerms):
            urls = (
                self.where.variables_from_hub.values()
            )  # of proxies and registries: only credentials in them are secret
            return (*self.where.env.values(), *(secret for url in urls for secret in secrets_of_url(url)))
        oauth = self.where.oauth
        own = (oauth.client_secret, oauth.private_key, *oauth.private_key.splitlines()[1:-1]) if oauth else ()
        values = self.where.headers.values()
        return (*own, *values, *(value.rpartition(" ")[2] for value in values))


MCP = SourceKind(
    ToolKind.MCP,
    McpSource,
    {ClientCredentials: "oauth", LoginClient: "login"},
    _check_source,
    "toolhub_service.adapters.mcp.adapter:McpOpener",
    package="mcp",
    values=_values,
    files={McpSource: ("cwd",)},
    missing=_missing,
    remarks=_remarks,
    entry_of=lambda _given: {},
    relays=lambda entry: entry.relay,
)
