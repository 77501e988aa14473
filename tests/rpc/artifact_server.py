"""A server of ArtifactService alone: the real interceptors, servicer, records and disk; `x-who` names the caller."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from tests.fakes.artifacts import ArtifactsHarness, kept_in
from tests.fakes.audit_log import MemoryAuditLog
from tests.hub import channel_to
from toolhub.v1 import artifact_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub, add_ArtifactServiceServicer_to_server
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.artifact_servicer import ArtifactServicer
from toolhub_service.transport.envelope import ValidationLayer
from toolhub_service.transport.front import Front
from toolhub_service.transport.interceptors.admission import TenantShares
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.interceptors.policy import PolicyLayer
from toolhub_service.transport.rpc import CALLER, Caller, Layer, Method, ServicerContext
from toolhub_service.transport.status import RpcFailure

TIMEOUT_S = 60.0
MIB = 1024 * 1024


class WhoLayer(Layer):
    """Believes `x-who` and `x-role`, as only a test may."""

    def enter(self, method: Method, context: ServicerContext) -> None:
        metadata = dict(context.invocation_metadata() or ())
        roles = {Role.AGENT, *(Role(role) for role in str(metadata.get("x-role", "")).split())}
        CALLER.set(Caller(Principal(str(metadata.get("x-who", "agent-a")), frozenset(roles))))


class InFlight(Layer):
    """Counts RPCs, so that a test can wait until a cancelled one has left."""

    def __init__(self) -> None:
        self.count = 0
        self.entered = asyncio.Event()
        self.empty = asyncio.Event()

    def enter(self, method: Method, context: ServicerContext) -> None:
        self.count += 1
        self.entered.set()
        self.empty.clear()

    def leave(self, method: Method, state: None, context: ServicerContext, error: BaseException | None) -> None:
        self.count -= 1
        if not self.count:
            self.empty.set()


class BrokenStreams(Layer):
    """Ends uploads as a connection that breaks does to a client: the next one after so many messages."""

    def __init__(self) -> None:
        self.after: list[int] = []
        self._left = 0

    def enter(self, method: Method, context: ServicerContext) -> None:
        if method.name == "WriteArtifact" and self.after:
            self._left = self.after.pop(0)

    def on_request(self, method: Method, state: None, request: Any) -> None:
        if method.name == "WriteArtifact" and self._left:
            self._left -= 1
            if not self._left:
                raise RpcFailure(Reason.DRAINING, "the connection broke")


@dataclass
class ArtifactServer:
    address: str
    channel: grpc.aio.Channel
    kept: ArtifactsHarness
    in_flight: InFlight
    audit: MemoryAuditLog
    breaking: BrokenStreams
    crashes: list[Exception] = field(default_factory=list)

    @property
    def stub(self) -> Any:
        return ArtifactServiceStub(self.channel)

    async def write(self, *chunks: bytes, who: str = "agent-a", **header: Any) -> artifact_pb2.Artifact:
        call = self.stub.WriteArtifact(messages(chunks, **header), timeout=TIMEOUT_S, metadata=(("x-who", who),))
        return (await call).artifact  # type: ignore[no-any-return]

    async def get(self, artifact_id: str, who: str = "agent-a", role: str = "agent") -> artifact_pb2.Artifact:
        metadata = (("x-who", who), ("x-role", role))
        request = pb.GetArtifactRequest(artifact_id=artifact_id)
        return (await self.stub.GetArtifact(request, timeout=TIMEOUT_S, metadata=metadata)).artifact  # type: ignore[no-any-return]

    def reading(self, artifact_id: str, offset: int = 0, limit: int = 0, who: str = "agent-a") -> Any:
        request = pb.ReadArtifactRequest(artifact_id=artifact_id, offset_bytes=offset, limit_bytes=limit)
        return self.stub.ReadArtifact(request, timeout=TIMEOUT_S, metadata=(("x-who", who),))

    async def upload(self, upload_id: str, who: str = "agent-a") -> pb.GetUploadResponse:
        request = pb.GetUploadRequest(upload_id=upload_id)
        return await self.stub.GetUpload(request, timeout=TIMEOUT_S, metadata=(("x-who", who),))  # type: ignore[no-any-return]

    async def list(self, who: str = "agent-a", role: str = "agent", **where: Any) -> pb.ListArtifactsResponse:
        metadata = (("x-who", who), ("x-role", role))
        request = pb.ListArtifactsRequest(**where)
        return await self.stub.ListArtifacts(request, timeout=TIMEOUT_S, metadata=metadata)  # type: ignore[no-any-return]

    async def delete(self, artifact_id: str, who: str = "agent-a", role: str = "agent") -> None:
        metadata = (("x-who", who), ("x-role", role))
        request = pb.DeleteArtifactRequest(artifact_id=artifact_id)
        await self.stub.DeleteArtifact(request, timeout=TIMEOUT_S, metadata=metadata)

    async def read(self, artifact_id: str, offset: int = 0, limit: int = 0) -> bytes:
        """The chunks behind the first message, which must be the artifact."""
        parts = [response async for response in self.reading(artifact_id, offset, limit)]
        assert parts[0].WhichOneof("part") == "artifact"
        assert parts[0].artifact.artifact_id == artifact_id
        assert all(part.WhichOneof("part") == "chunk" and 1 <= len(part.chunk) <= 262_144 for part in parts[1:])
        return b"".join([part.chunk for part in parts[1:]])


async def messages(chunks: Iterable[bytes], **header: Any) -> AsyncIterator[pb.WriteArtifactRequest]:
    yield pb.WriteArtifactRequest(header=pb.ArtifactHeader(**header))
    for chunk in chunks:
        yield pb.WriteArtifactRequest(chunk=chunk)


@asynccontextmanager
async def artifact_server(folder: Path, **terms: Any) -> AsyncIterator[ArtifactServer]:
    """Further keywords are terms of `kept_in`."""
    kept, in_flight, crashes, audit = kept_in(folder, **terms), InFlight(), list[Exception](), MemoryAuditLog()
    breaking = BrokenStreams()
    layers = [
        in_flight,
        ErrorsLayer(lambda _, error: crashes.append(error)),
        WhoLayer(),
        PolicyLayer(TenantShares(1_000)),
        ValidationLayer(),
        breaking,
    ]
    server, governed = grpc.aio.server(), Front(layers)
    server.add_generic_rpc_handlers((governed,))
    servicer = ArtifactServicer(kept.artifacts, audit, kept.clock)
    add_ArtifactServiceServicer_to_server(servicer, governed)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        async with channel_to(address) as channel:
            yield ArtifactServer(address, channel, kept, in_flight, audit, breaking, crashes)
    finally:
        await server.stop(0)
        await kept.artifacts.close()
    assert crashes == []


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
