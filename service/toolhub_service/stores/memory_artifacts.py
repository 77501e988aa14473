"""Records of artifacts in the memory of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toolhub_service.domain.artifact import Artifact


class MemoryArtifacts:
    """Implements `ArtifactRecords`."""

    def __init__(self) -> None:
        self._artifacts: dict[str, Artifact] = {}
        self._uses: Counter[str] = Counter()
        """How many artifacts have each sha256."""
        self._owned: Counter[str] = Counter()
        self._owned_bytes: Counter[str] = Counter()

    async def add(self, artifact: Artifact) -> None:
        self._artifacts[artifact.artifact_id] = artifact
        self._count(artifact, 1)

    async def get(self, artifact_id: str) -> Artifact | None:
        return self._artifacts.get(artifact_id)

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]:
        found = [each for each in self._artifacts.values() if each.expires_at_unix_ms <= now_unix_ms]
        return sorted(found, key=lambda each: (each.expires_at_unix_ms, each.artifact_id))[:limit]

    async def remove(self, artifact_id: str) -> bool:
        artifact = self._artifacts.pop(artifact_id, None)
        if artifact is None:
            return False
        self._count(artifact, -1)
        return artifact.sha256 not in self._uses

    async def usage(self, principal: str) -> tuple[int, int]:
        return self._owned[principal], self._owned_bytes[principal]

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _count(self, artifact: Artifact, change: int) -> None:
        self._uses[artifact.sha256] += change
        self._owned[artifact.principal] += change
        self._owned_bytes[artifact.principal] += change * artifact.size_bytes
        if not self._uses[artifact.sha256]:
            del self._uses[artifact.sha256]
        if not self._owned[artifact.principal]:
            del self._owned[artifact.principal], self._owned_bytes[artifact.principal]
