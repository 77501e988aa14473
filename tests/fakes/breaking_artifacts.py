"""An ArtifactService of one artifact whose streams break."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceServicer, add_ArtifactServiceServicer_to_server

DATA = bytes(range(256)) * 8_000
"""2 MB."""


class BreakingArtifactServicer(ArtifactServiceServicer):
    """Gives three chunks a stream, then breaks it as `end` says; `lies`: the digest is another."""

    def __init__(self, end: grpc.StatusCode | None, lies: bool = False, streams_max: int = 10**9) -> None:
        self._end, self._streams_max = end, streams_max
        self._sha256 = "0" * 64 if lies else hashlib.sha256(DATA).hexdigest()
        self.offsets: list[int] = []

    def _artifact(self) -> Any:
        return {"artifact_id": "art_1", "sha256": self._sha256, "size_bytes": len(DATA), "name": "data.bin"}

    async def GetArtifact(self, request: Any, context: Any) -> pb.GetArtifactResponse:
        return pb.GetArtifactResponse(artifact=self._artifact())

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[pb.ReadArtifactResponse]:
        self.offsets.append(request.offset_bytes)
        if len(self.offsets) > self._streams_max:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        yield pb.ReadArtifactResponse(artifact=self._artifact())
        for start in range(request.offset_bytes, len(DATA), 200_000)[:3]:
            yield pb.ReadArtifactResponse(chunk=DATA[start : start + 200_000])
        if self._end is not None and request.offset_bytes + 600_000 < len(DATA):
            await context.abort(self._end, "broken")

    WriteArtifact = GetUpload = ListArtifacts = DeleteArtifact = None  # type: ignore[assignment]


async def served(servicer: BreakingArtifactServicer) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    add_ArtifactServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"
