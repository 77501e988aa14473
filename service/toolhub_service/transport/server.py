"""The gRPC server: its servicers, its interceptors, its address, and how it shuts down."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from toolhub.v1 import (
    approval_service_pb2,
    approval_service_pb2_grpc,
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    credential_service_pb2,
    credential_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    registry_service_pb2,
    registry_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from toolhub_service.domain.ports import Sleep
from toolhub_service.runtime.page_seal import PageSeal
from toolhub_service.transport.audit_servicer import AuditServicer
from toolhub_service.transport.front import Front
from toolhub_service.transport.interceptors.admission import AdmissionLayer
from toolhub_service.transport.reflection import add_reflection
from toolhub_service.transport.registry_servicer import RegistryServicer
from toolhub_service.transport.rpc import Layer
from toolhub_service.transport.tool_servicer import ToolServicer

_REQUEST_MAX_BYTES = 4 * 1024 * 1024
# Room for context, purpose and ids besides 4 MiB of arguments.
_ENVELOPE_BYTES = 128 * 1024

# Larger metadata is refused; without the absolute bound gRPC refuses at random from this size up to twice as much.
_METADATA_BYTES = 32 * 1024

# Held for a stream that nobody reads, and for a connection besides what is being read; enough for 5 MB/s at 100 ms of
# latency. gRPC's probe would widen the windows to what a fast sender sends, and hold that much even if it is never
# read.
_WINDOW_BYTES = 512 * 1024

# For TLS and the first frames of HTTP/2; a connection that is silent for longer is closed.
_HANDSHAKE_S = 20

# Time for the answer of the longest call to be written and read.
_LEAVE_S = 10

# Concurrent RPCs of one connection, health and reflection included; a client that wants more waits or connects again.
# With 128, gRPC refuses honest clients: it counts streams, too, that have ended and are not released yet.
_STREAMS_A_CONNECTION = 1_000

# RPCs that have arrived and are not handled yet. Beyond 1,000, gRPC resets some at random as CANCELLED, which no client
# takes for overload: the admission layer refuses with a status that says when to retry.
_PENDING_MAX = 16_384

# Seconds without a call after which a mesh counts as having noticed the shutdown; and the longest wait for that,
# because some clients ignore health.
_QUIET_S = 0.25
_GOING_S = 5.0

ANSWERS_S = 3.0
"""Time for calls that were cut off at the end of the grace: to stop, and to write their answers."""

# Longest wait for cancelled calls: a process may take a moment to end.
_CUT_OFF_S = 5.0

_PACKAGE = "toolhub.v1"
# Capabilities that the first version of the contract did not have.
_FEATURES = ("jobs.history", "jobs.watch_many", "tools.args_form", "tools.expected_digest", "tools.watch")

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_EFFECTS = ("toolhub.v1.ToolService", "toolhub.v1.JobService")


class Listening(msgspec.Struct, frozen=True):
    """Where and how the server listens."""

    address: str
    """host:port or unix:/path."""
    credentials: grpc.ServerCredentials | None = None
    keys_address: str = ""
    """A second host:port with the same services; empty for none."""
    keys_credentials: grpc.ServerCredentials | None = None
    share_port: bool = False
    """SO_REUSEPORT: several processes listen on one port."""
    max_connection_age_s: float = 0.0
    max_call_s: float = 600.0
    """Longest time of any call."""
    max_connection_idle_s: float = 300.0
    max_connections: int = 10_000
    """For this process; further connections are closed as soon as they are accepted."""
    reflection: bool = True


def cannot_listen(address: str) -> OSError:
    """Return the error of an address that cannot be bound."""
    return OSError(f"cannot listen on {address}: the address is in use, or not one of this machine")


class Server:
    """Created stopped; call `start`, then `drain`."""

    def __init__(
        self,
        listening: Listening,
        layers: Sequence[Layer],
        admission: AdmissionLayer,
        *,
        tools: ToolServicer,
        jobs: job_service_pb2_grpc.JobServiceServicer,
        approvals: approval_service_pb2_grpc.ApprovalServiceServicer,
        artifacts: artifact_service_pb2_grpc.ArtifactServiceServicer,
        registry: RegistryServicer,
        audit: AuditServicer,
        credentials: credential_service_pb2_grpc.CredentialServiceServicer,
        pages: PageSeal | None = None,
    ) -> None:
        self._admission = admission
        self.tools = tools
        self.registry = registry
        self._audit = audit
        self._effects: Any = _SERVING
        self._status: Any = _NOT_SERVING
        self._health = health.aio.HealthServicer()
        self._grpc = grpc.aio.server(options=server_options(listening))
        # Stands in for the server where servicers are added.
        governed: Any = Front(layers, tools.turns, admission.refusals, pages)
        self._grpc.add_generic_rpc_handlers((governed,))
        tool_service_pb2_grpc.add_ToolServiceServicer_to_server(tools, governed)
        job_service_pb2_grpc.add_JobServiceServicer_to_server(jobs, governed)
        approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(approvals, governed)
        artifact_service_pb2_grpc.add_ArtifactServiceServicer_to_server(artifacts, governed)
        registry_service_pb2_grpc.add_RegistryServiceServicer_to_server(registry, governed)
        audit_service_pb2_grpc.add_AuditServiceServicer_to_server(audit, governed)
        credential_service_pb2_grpc.add_CredentialServiceServicer_to_server(credentials, governed)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, governed)
        self._services = [service.full_name for service in _descriptors()]
        if listening.reflection:
            add_reflection(governed, [*self._services, health.SERVICE_NAME])
        self.port = self._bind(listening.address, listening.credentials)
        """The bound port; 0 for a Unix socket."""
        self.keys_port = self._bind(listening.keys_address, listening.keys_credentials) if listening.keys_address else 0
        """The bound port of `keys_address`."""

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return self._grpc.add_insecure_port(address)
            return self._grpc.add_secure_port(address, credentials)
        except RuntimeError as taken:
            raise cannot_listen(address) from taken

    async def start(self) -> None:
        """Accept calls; health is SERVING when this returns."""
        await self._grpc.start()
        await self._report_health(_SERVING)

    async def drain(
        self,
        notice_s: float,
        grace_s: float,
        leaving: Callable[[], Awaitable[None]] | None = None,
        *,
        cut_off: Callable[[], None] = lambda: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Shut down: NOT_SERVING, wait for the mesh to notice, refuse new work, let running work end, stop.

        `leaving` runs during the grace of the running RPCs: watches end, jobs end or are handed over. `cut_off` ends
        the calls that run beyond the grace, each with an answer; what runs even then is cancelled. When this returns
        all has been stopped and recorded. `sleep` waits until the mesh has noticed.
        """
        await self._report_health(_NOT_SERVING)
        if notice_s:
            await sleep(notice_s)
        self._admission.draining = True
        self.tools.sessions.drain()
        self.registry.news.close()
        self._audit.drain()
        cutting = asyncio.get_running_loop().call_later(grace_s, cut_off)
        stopping = self._stop(grace_s, min(grace_s, _GOING_S) if notice_s else 0.0)
        try:
            await asyncio.gather(stopping, *([] if leaving is None else [leaving()]))
        finally:
            cutting.cancel()
        await self._admission.wait_until_empty(_CUT_OFF_S)

    async def _stop(self, grace_s: float, going_s: float) -> None:
        """Close the connections, within `grace_s` and the time for answers to calls that are cut off then.

        Once gRPC stops, it answers CANCELLED to RPCs that still arrive, from which a client cannot conclude that
        nothing has begun. So where a mesh was notified, its RPCs are refused first: until it sends none any more, for
        up to `going_s`.
        """
        began_s = monotonic()
        await self._admission.wait_until_quiet(_QUIET_S, going_s)
        await self._grpc.stop(max(0.0, grace_s - (monotonic() - began_s)) + ANSWERS_S)

    async def report_effects(self, *, are_possible: bool) -> None:
        """Report in the health of the services that carry calls whether effects can be recorded. The server's own
        health stays SERVING: a restart repairs no audit log, and reads of the log and decisions of people are still
        answered."""
        status = _SERVING if are_possible else _NOT_SERVING
        for service in _EFFECTS if status != self._effects and not self._admission.draining else ():
            await self._health.set(service, status)
        self._effects = status

    def is_serving(self) -> bool:
        """Return whether the health of the whole hub is SERVING."""
        return bool(self._status == _SERVING)

    async def _report_health(self, status: Any) -> None:
        self._status = status
        for service in ("", *self._services):
            await self._health.set(service, status)


def server_options(listening: Listening) -> list[tuple[str, int]]:
    options = [
        ("grpc.so_reuseport", int(listening.share_port)),
        ("grpc.max_receive_message_length", _REQUEST_MAX_BYTES + _ENVELOPE_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * 1_000),
        ("grpc.max_connection_idle_ms", int(listening.max_connection_idle_s * 1_000)),
        ("grpc.max_allowed_incoming_connections", listening.max_connections),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        # Read from one connection at once; without this limit, headers that never end take hundreds of megabytes.
        ("grpc.experimental.tcp_max_read_buffer_size", _WINDOW_BYTES),
        ("grpc.max_concurrent_streams", _STREAMS_A_CONNECTION),
        ("grpc.server.max_pending_requests", _PENDING_MAX),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
    if listening.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", int(listening.max_connection_age_s * 1_000)))
        # After this gRPC interrupts running RPCs, even in the middle of an effect: no call may take that long.
        grace_s = listening.max_call_s + _LEAVE_S
        options.append(("grpc.max_connection_age_grace_ms", int(grace_s * 1_000)))
    return options


def contract_digest() -> str:
    """Return the sha256 (hex) over the files of the contract: equal digests mean exactly the same contract."""
    files = {service.file for service in _descriptors()}
    pending = list(files)
    while pending:
        new = {file for file in pending.pop().dependencies if file.package == _PACKAGE} - files
        files |= new
        pending += new
    return hashlib.sha256(
        b"".join(file.serialized_pb for file in sorted(files, key=lambda file: file.name))
    ).hexdigest()


def server_info(
    listening: Listening, *, version: str, features: Iterable[str], credentials: Iterable[str], **limits: float
) -> tool_service_pb2.ServerInfo:
    """Return the answer of GetServerInfo; `limits` are fields of ServerLimits, durations in seconds under `…_s`."""
    taken = tool_service_pb2.ServerLimits(max_request_bytes=_REQUEST_MAX_BYTES + _ENVELOPE_BYTES)
    for name, value in limits.items():
        if name.endswith("_s"):
            getattr(taken, name.removesuffix("_s")).FromMilliseconds(round(value * 1_000))
        else:
            setattr(taken, name, value)
    protocol = "grpc" if listening.credentials is None else "grpc+tls"
    return tool_service_pb2.ServerInfo(
        version=version,
        contract=_PACKAGE,
        contract_digest=contract_digest(),
        features=sorted([*_FEATURES, *features, *(["reflection"] if listening.reflection else [])]),
        limits=taken,
        entrances=[tool_service_pb2.Entrance(protocol=protocol, credentials=credentials)],
    )


def _descriptors() -> list[Any]:
    modules = (
        tool_service_pb2,
        job_service_pb2,
        approval_service_pb2,
        artifact_service_pb2,
        registry_service_pb2,
        audit_service_pb2,
        credential_service_pb2,
    )
    return [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
