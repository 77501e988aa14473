"""Wires the MCP endpoint: authentication by the same credentials and roles as over gRPC, and the handlers."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import grpc
import msgspec

from toolhub_service import __version__
from toolhub_service.app.config_files.editing import read_key
from toolhub_service.app.listening import check_mcp, is_local
from toolhub_service.app.wiring.calls import LongWork
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.source_runtime import ConfiguredSources
from toolhub_service.app.wiring.tools import Searching, Toolbox
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import AccessObserver, AuditLog, Invoker
from toolhub_service.identity.tokens import KeysNeeded
from toolhub_service.mcp_server.caller import AccessRefused
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.http.admission import CLIENT_CHAIN, AdmissionTerms
from toolhub_service.mcp_server.http.listener import NOT_INSTALLED, Listener, Served, is_installed
from toolhub_service.mcp_server.http.resource_server import ProtectedResource
from toolhub_service.mcp_server.login_pages import LoginPages
from toolhub_service.policy.live import LivePolicy
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry.mcp import McpTelemetry
from toolhub_service.transport.credential_servicer import note_given
from toolhub_service.transport.interceptors.auth import (
    REASONS,
    AuthLayer,
    enter_again,
    peer_address,
    public_key_id,
)
from toolhub_service.transport.interceptors.policy import check_role
from toolhub_service.transport.rpc import Method, ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure

_STATUSES: Final = {grpc.StatusCode.PERMISSION_DENIED: 403, grpc.StatusCode.UNAVAILABLE: 503}
# Callers with a right to make calls over gRPC have it over MCP.
_AS: Final = Method("/toolhub.v1.ToolService/Invoke", "toolhub.v1.ToolService", "Invoke", "unary")


def _peer(address: str) -> str:
    """Return the peer as refusals over gRPC name it; what is no address stays unchanged."""
    named = peer_address(f"ipv6:[{address}]:0" if ":" in address else f"ipv4:{address}:0")
    return address if named == "unknown" and address else named


class _Sent:
    """What authenticators read of an RPC: its metadata, here the headers, and the peer."""

    def __init__(self, headers: Sequence[tuple[str, str]], peer: str) -> None:
        self._headers = headers
        self._peer = peer

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._headers

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return {"x509_pem_cert": CLIENT_CHAIN.get()}

    def peer(self) -> str:
        return f"ipv6:[{self._peer}]:0" if ":" in self._peer else f"ipv4:{self._peer}:0"


class McpAccess:
    """Authenticates requests by gRPC's authenticators; refusals are recorded in the same place."""

    def __init__(self, authenticators: AuthLayer, observer: AccessObserver) -> None:
        self._authenticators = authenticators
        self._observer = observer

    async def __call__(self, headers: Sequence[tuple[str, str]], peer: str, asked: str) -> Principal:
        """Authenticate. Raises AccessRefused."""
        sent = cast(ServicerContext, _Sent(headers, peer))
        try:
            try:
                self._enter(sent)
            except KeysNeeded as needed:
                await enter_again(needed, self._enter, sent)
        except RpcFailure as refused:
            raise self._refusal(refused, headers, peer, asked) from refused
        return self._with_role(headers, peer, asked)

    def at_once(self, headers: Sequence[tuple[str, str]], peer: str, asked: str) -> Principal:
        """Return the caller without waiting for an issuer. Raises AccessRefused."""
        try:
            self._enter(cast(ServicerContext, _Sent(headers, peer)))
        except KeysNeeded as needed:
            # Standard input cannot wait here: the keys are fetched meanwhile, for the client's next request.
            needed.begin()
            raise AccessRefused(503, needed.unmet().message) from needed
        except RpcFailure as refused:
            raise self._refusal(refused, headers, peer, asked) from refused
        return self._with_role(headers, peer, asked)

    def _enter(self, sent: ServicerContext) -> None:
        self._authenticators.enter(_AS, sent)

    def _with_role(self, headers: Sequence[tuple[str, str]], peer: str, asked: str) -> Principal:
        principal = current_principal()
        try:
            check_role(_AS, principal)
        except RpcFailure as refused:
            raise self._refusal(refused, headers, peer, asked, principal.id) from refused
        return principal

    def _refusal(
        self, refused: RpcFailure, headers: Sequence[tuple[str, str]], peer: str, asked: str, principal_id: str = ""
    ) -> AccessRefused:
        wait_s = 0.0
        # Other refusals, such as at shutdown, say nothing about the caller.
        if refused.reason in REASONS:
            key_id = public_key_id(dict(headers))
            wait_s = self._observer.count_refusal(
                _peer(peer), asked, refused.reason.name, principal=principal_id, key_id=key_id
            )
        return AccessRefused(
            _STATUSES.get(refused.code, 401),
            refused.message,
            retry_after_s=wait_s or refused.retry_after_s,
            is_missing=refused.reason is Reason.CREDENTIAL_MISSING,
            scope=refused.metadata.get("scope", ""),
        )


def make_engine(
    deps: Deps,
    *,
    toolbox: Toolbox,
    sources: ConfiguredSources,
    searching: Searching,
    policy: LivePolicy,
    invoker: Invoker,
    long_work: LongWork,
    artifacts: Artifacts,
    logins: LoginPages,
    plan_key: bytes,
) -> Engine:
    """Return the engine of the protocol's handlers, for requests of any transport."""
    chosen = deps.settings.server.mcp
    return Engine(
        invoker=invoker,
        catalog=toolbox.catalog,
        policy=policy,
        search=searching.search,
        meanings=searching.meanings,
        sources=sources.statuses,
        relays=sources.relays,
        stand_ins=sources.stand_ins,
        submission=long_work.submission(invoker, toolbox.catalog),
        jobs=long_work.job_service,
        watch=long_work.watch,
        withdraw=long_work.approvals.withdraw,
        artifacts=artifacts,
        resource_news=deps.resource_news,
        clock=deps.clock,
        call_ids=CallIds(deps.clock, deps.randomness),
        telemetry=McpTelemetry(deps.observing.metrics, deps.observing.tracing),
        crashed=deps.observing.rpc_crashed,
        redact=deps.redactor.text,
        on_policy=policy.subscribe,
        version=__version__,
        state_key=_state_key(deps, plan_key),
        mode=chosen.tools,
        unprefixed_sources=frozenset(chosen.unprefixed_sources),
        names_clash=deps.observing.mcp_names_clash,
        logins=logins if deps.settings.server.workers == 1 else None,  # tickets are in one process
        approval_url=chosen.approval_url,
        job_keep_ms=round(deps.settings.jobs.keep_s * 1_000),
        full_max_tokens=chosen.full_max_tokens,
        text_max_bytes=chosen.text_max_bytes,
    )


def make_login_pages(deps: Deps, vault: Vault, audit: AuditLog, sources: ConfiguredSources) -> LoginPages:
    """Return the pages, which are offered once the endpoint is bound."""
    return LoginPages(vault, partial(note_given, audit, deps.clock), sources.read_after_login)


def _base_of(settings: Settings, host: str, port: int) -> str:
    """Return under which address browsers reach the endpoint; empty where nobody has named one."""
    chosen = settings.server.mcp
    if chosen.public_url:
        return "{0.scheme}://{0.netloc}".format(urlsplit(chosen.public_url))
    if not is_local(chosen.listen):
        return ""
    scheme = "https" if settings.server.tls.certificate_file else "http"
    return f"{scheme}://{'[::1]' if ':' in host else '127.0.0.1'}:{port}"


def _state_key(deps: Deps, plan_key: bytes) -> bytes:
    """Return the key. Raises OSError, SecretFileInvalid."""
    if key := given_state_key(deps.settings):
        return key
    # Derived: with one key for two purposes, data sealed for one could be used for the other.
    return hashlib.sha256(b"mcp request state\n" + plan_key).digest()


def given_state_key(settings: Settings) -> bytes:
    """Return the key of `server.mcp.state_key_file`; nothing when the setting is empty. Raises as `_state_key`."""
    file = settings.server.mcp.state_key_file
    if not file:
        return b""
    return read_key(Path(file).expanduser(), "write 64 hexadecimal digits, such as those of `openssl rand -hex 32`")


class Mcp(msgspec.Struct, frozen=True):
    engine: Engine
    """The handlers of the protocol, for any transport."""
    access: McpAccess
    listener: Listener
    problem: str = ""
    """Why MCP is not served though it should be; empty when it is, or need not be."""


def make_mcp(deps: Deps, engine: Engine, access: McpAccess) -> Mcp:
    """Return the endpoint, bound if possible, otherwise with the reason: gRPC is served anyway."""
    settings = deps.settings
    crashed = partial(deps.observing.rpc_crashed, "mcp")
    mcp = Mcp(engine, access, Listener(partial(_serve, deps, engine, access), crashed))
    if not settings.server.mcp.enabled:
        return mcp
    if not is_installed():
        return msgspec.structs.replace(mcp, problem=NOT_INSTALLED)
    host, port = check_mcp(settings)
    try:
        mcp.listener.bind(host, port, share_port=settings.server.workers > 1)
    except OSError as taken:
        advice = "set server.mcp.listen (TOOLHUB_SERVER_MCP_LISTEN) to another, or server.mcp.enabled to false"
        problem = f"not served on {settings.server.mcp.listen}: {taken.strerror}; {advice}"
        # Reported, not raised: gRPC is served anyway, and a taken port is no reason to have no hub.
        return msgspec.structs.replace(mcp, problem=problem)
    if engine.logins is not None:
        engine.logins.base = _base_of(settings, host, mcp.listener.port)
    return mcp


def resource_of(settings: Settings) -> ProtectedResource | None:
    """Return what the endpoint tells clients that need a token; None when there is no URL for it."""
    url, issuers = settings.server.mcp.public_url, settings.auth.jwt.issuers
    if not url or not issuers:
        return None
    required = {scope for issuer in issuers for scope in issuer.required_scopes}
    mapped = {held for issuer in issuers for held in (*issuer.roles, *issuer.capabilities)}
    scopes = required | {held.removeprefix("scope:") for held in mapped if held.startswith("scope:")}
    logins = [
        {"issuer": issuer.issuer, "resource": issuer.audiences[0]}
        | ({"client_id": issuer.login_client_id} if issuer.login_client_id else {})
        for issuer in issuers
    ]
    return ProtectedResource(url, [issuer.issuer for issuer in issuers], sorted(scopes), sorted(required), logins)


def _hosts(settings: Settings) -> frozenset[str]:
    """Return the accepted names in Host besides this machine's; none beyond loopback means any."""
    chosen = settings.server.mcp
    hosts = {host.lower() for host in chosen.allowed_hosts}
    # When every Host is accepted, adding one would refuse all others.
    if chosen.public_url and (hosts or is_local(chosen.listen)):
        hosts.add(urlsplit(chosen.public_url).netloc.lower())
    return frozenset(hosts)


async def _serve(deps: Deps, engine: Engine, access: McpAccess, serving: Any, bound: socket.socket) -> Served:
    settings, server, chosen = deps.settings, deps.settings.server, deps.settings.server.mcp
    admission = AdmissionTerms(
        is_local=is_local(chosen.listen),
        allowed_hosts=_hosts(settings),
        allowed_origins=frozenset(origin.lower().rstrip("/") for origin in chosen.allowed_origins),
        resource=resource_of(settings),
        max_body_bytes=chosen.max_body_bytes,
        max_requests=server.max_in_flight,
        max_streams=chosen.max_streams,
        max_sessions=chosen.max_sessions,
        session_idle_s=chosen.session_idle_s,
        logins=engine.logins,
        turns=deps.turns,
    )
    terms = serving.HttpTerms(
        admission=admission,
        max_connections=chosen.max_connections,
        is_alone=server.workers == 1,
        tls=deps.certificates.ssl_context(),
    )
    served: Served = await serving.serve(engine, access, terms, bound)
    return served
