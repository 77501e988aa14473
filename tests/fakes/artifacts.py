"""Artifacts of a test: records in memory, bytes in a folder, a clock by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.clock import ManualClock
from tests.fakes.storage import with_quota
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.call import Call, ExecContext, Principal
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.stores.blobs.disk import DiskBlobs
from toolhub_service.stores.memory.records import MemoryArtifacts

TTL_S = 3_600.0
MAX_BYTES = 8 * 1024 * 1024
QUOTA_BYTES = 20 * 1024 * 1024
ARGUMENT_MAX_BYTES = 100_000


class FakeArtifactRecords(MemoryArtifacts):
    """Records in memory to look at; `is_broken`: they cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False
        self.found: dict[str, Artifact] = {}

    async def add(self, artifact: Artifact) -> None:
        self._check()
        await super().add(artifact)
        self.found[artifact.artifact_id] = artifact

    async def remove(self, artifact_id: str) -> bool:
        self.found.pop(artifact_id, None)
        return await super().remove(artifact_id)

    async def get(self, artifact_id: str) -> Artifact | None:
        self._check()
        return await super().get(artifact_id)

    async def usage(self, principal: str) -> tuple[int, int]:
        self._check()
        return await super().usage(principal)

    def _check(self) -> None:
        if self.is_broken:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The store of artifact records does not answer. Try again.")


@dataclass
class ArtifactsHarness:
    """Artifacts and what lies beneath them."""

    artifacts: Artifacts
    records: FakeArtifactRecords
    blobs: DiskBlobs
    folder: Path
    clock: ManualClock

    def files(self) -> list[str]:
        """Digests that have bytes, and temporary files by name."""
        return sorted(
            path.name if path.parent.name == ".incoming" else path.parent.name + path.name
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        )


def kept_in(folder: Path, *, settle_s: float = 0.0, quota_bytes: int = QUOTA_BYTES, **terms: Any) -> ArtifactsHarness:
    records, blobs, clock = FakeArtifactRecords(), DiskBlobs(str(folder), settle_s=settle_s), ManualClock()
    chosen = {
        "ttl_s": TTL_S,
        "max_bytes": MAX_BYTES,
        "directory": with_quota(artifact=quota_bytes),
        "argument_max_bytes": ARGUMENT_MAX_BYTES,
        "linger_s": 0.0,
        **terms,
    }
    artifacts = Artifacts(records, blobs, clock, SystemRandomness(), **chosen)
    return ArtifactsHarness(artifacts, records, blobs, folder, clock)


def a_call(principal: str = "agent-a", *, call_id: str = "call-1", task_id: str = "task-1", **fields: Any) -> Call:
    return Call(
        call_id=call_id,
        tool="test/text.say",
        args={},
        principal=Principal(principal),
        context=ExecContext(request_id="request-1", task_id=task_id),
        **fields,
    )


async def pieces(*chunks: bytes, breaks_with: BaseException | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if breaks_with is not None:
        raise breaks_with


async def whole(artifacts: Artifacts, artifact: Artifact, offset_bytes: int = 0, limit_bytes: int = 0) -> bytes:
    return b"".join([chunk async for chunk in artifacts.read(artifact, offset_bytes, limit_bytes)])
