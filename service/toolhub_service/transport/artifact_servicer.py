"""ArtifactService: large inputs and outputs by reference.

The next chunk is read from the store once the previous one has been sent, and from the client once the previous one is
stored, so that gRPC's own flow control bounds how much of an artifact of any size is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, cast

from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1 import artifact_service_pb2_grpc
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.call import Role
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.runtime.artifacts.service import Artifacts, DamagedArtifact
from toolhub_service.transport.convert.records import from_artifact, to_artifact_filter, to_header
from toolhub_service.transport.page_tokens import page_limit, read_cursor, write_cursor
from toolhub_service.transport.rpc import ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure

_LINGER_BYTES = 16 * 1024 * 1024
# Seconds to wait for the next message; a client that sends nothing loses nothing.
_LINGER_S = 0.2
# Sent once the header is accepted and there is room: a client with much to send may wait for it.
_ACCEPTED = (("toolhub-accepted", "header"),)


@dataclass(slots=True)
class ArtifactServicer(artifact_service_pb2_grpc.ArtifactServiceServicer):
    artifacts: Artifacts
    audit: AuditLog
    clock: Clock

    async def GetArtifact(self, request: pb.GetArtifactRequest, context: ServicerContext) -> pb.GetArtifactResponse:
        return pb.GetArtifactResponse(artifact=from_artifact(await self._open(request.artifact_id)))

    async def ReadArtifact(
        self, request: pb.ReadArtifactRequest, context: ServicerContext
    ) -> AsyncIterator[pb.ReadArtifactResponse]:
        artifact = await self._open(request.artifact_id)
        if request.offset_bytes > artifact.size_bytes:
            raise RpcFailure(
                Reason.OFFSET_PAST_END,
                f"offset_bytes is beyond the end of the artifact, which has {artifact.size_bytes} bytes.",
                {"size_bytes": str(artifact.size_bytes)},
            )
        yield pb.ReadArtifactResponse(artifact=from_artifact(artifact))
        reading = self.artifacts.read(artifact, request.offset_bytes, request.limit_bytes)
        try:
            async with aclosing(cast(Any, reading)) as chunks:
                async for chunk in chunks:
                    yield pb.ReadArtifactResponse(chunk=chunk)
        except DamagedArtifact as damaged:
            raise RpcFailure(Reason.ARTIFACT_DAMAGED, damaged.error.message) from damaged

    async def GetUpload(self, request: pb.GetUploadRequest, context: ServicerContext) -> pb.GetUploadResponse:
        received_bytes, artifact = await self.artifacts.upload(current_principal().id, request.upload_id)
        return pb.GetUploadResponse(
            received_bytes=received_bytes, artifact=None if artifact is None else from_artifact(artifact)
        )

    async def ListArtifacts(
        self, request: pb.ListArtifactsRequest, context: ServicerContext
    ) -> pb.ListArtifactsResponse:
        principal = current_principal()
        where = to_artifact_filter(request, principal)
        cursor = read_cursor(request.page_token)
        found, after = await self.artifacts.page(
            where, after=cursor and cursor[:2], limit=page_limit(request.page_size)
        )
        return pb.ListArtifactsResponse(
            artifacts=[from_artifact(artifact) for artifact in found],
            next_page_token=write_cursor((*after, 0)) if after else "",
        )

    async def DeleteArtifact(
        self, request: pb.DeleteArtifactRequest, context: ServicerContext
    ) -> pb.DeleteArtifactResponse:
        principal = current_principal()
        artifact = await self.artifacts.open(principal.id, request.artifact_id)
        # Audited before the deletion: an artifact that an answer or the audit log names does not disappear without a
        # trace.
        await self.audit.append_durably(
            Event(
                type=EventType.ARTIFACT_DELETED,
                at_unix_ms=self.clock.unix_ms(),
                principal=principal.id,
                outcome="ok",
                attributes={
                    "artifact_id": artifact.artifact_id,
                    "sha256": artifact.sha256,
                    "size_bytes": str(artifact.size_bytes),
                },
            )
        )
        await self.artifacts.delete(artifact)
        return pb.DeleteArtifactResponse()

    async def WriteArtifact(
        self, request_iterator: AsyncIterator[pb.WriteArtifactRequest], context: ServicerContext
    ) -> pb.WriteArtifactResponse:
        try:
            artifact = await self._write(request_iterator, context)
        except (RpcFailure, HubFailure, ToolFailure):
            await _linger(request_iterator)
            raise
        return pb.WriteArtifactResponse(artifact=from_artifact(artifact))

    async def _write(self, requests: AsyncIterator[pb.WriteArtifactRequest], context: ServicerContext) -> Artifact:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise RpcFailure(Reason.HEADER_MISSING, "The first message must be the header, followed by chunks.")
        header = to_header(first.header)
        chunks = _chunks(requests, context)
        return await self.artifacts.write(current_principal().id, header, chunks)

    async def _open(self, artifact_id: str) -> Artifact:
        principal = current_principal()
        auditor = principal if Role.AUDITOR in principal.roles else None
        return await self.artifacts.open(principal.id, artifact_id, auditor=auditor)


async def _chunks(requests: AsyncIterator[pb.WriteArtifactRequest], context: ServicerContext) -> AsyncIterator[bytes]:
    """Send the initial metadata, which tell the client that its header is accepted, then yield its chunks.

    Raises RpcFailure where the protocol is violated, and where the stream ends because the client has disconnected.
    """
    await context.send_initial_metadata(_ACCEPTED)
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise RpcFailure(Reason.CHUNK_MISSING, "After the header every message must be a chunk.")
        yield request.chunk
    if context.cancelled():
        raise RpcFailure(Reason.CANCELLED, "The client disconnected before the artifact was complete.")


async def _linger(requests: AsyncIterator[pb.WriteArtifactRequest]) -> None:
    """Let a refused client send a little more: grpc.aio reports INTERNAL, not the reason, to a client that is cut off
    while it sends."""
    left_bytes = _LINGER_BYTES
    # The client may disconnect or send forever; its refusal is decided either way.
    with suppress(RpcFailure, TimeoutError):
        async with asyncio.timeout(_LINGER_S) as patience:
            async for request in requests:
                left_bytes -= max(len(request.chunk), _LINGER_BYTES // 256)  # so that small messages end, too
                if left_bytes <= 0:
                    return
                patience.reschedule(asyncio.get_running_loop().time() + _LINGER_S)
