"""Large values by reference: content-addressed, owned, expiring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from toolhub_service.domain.call import Call, Owners

OCTETS = "application/octet-stream"


class ArtifactRef(Struct, frozen=True, gc=False):
    """An artifact as results and jobs name it."""

    artifact_id: str
    sha256: str
    size_bytes: int
    media_type: str = OCTETS
    name: str = ""
    expires_at_unix_ms: int = 0


# The tag is the version of the record: a hub refuses one that it does not know instead of misreading it.
class Artifact(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
    """What is known of one artifact. Its bytes lie under `sha256` and never change."""

    artifact_id: str
    """Minted by the hub, not guessable."""
    sha256: str
    """64 lower-case hex digits."""
    size_bytes: int
    principal: str
    """Who owns it: only this principal and auditors may read it."""
    created_at_unix_ms: int
    expires_at_unix_ms: int
    media_type: str = OCTETS
    """RFC 6838, as the writer declared it; never trusted."""
    name: str = ""
    """For people, without folders."""
    task_id: str = ""
    call_id: str = ""
    """The call that made it; empty when a client uploaded it."""

    @property
    def ref(self) -> ArtifactRef:
        return ArtifactRef(
            self.artifact_id, self.sha256, self.size_bytes, self.media_type, self.name, self.expires_at_unix_ms
        )


class ArtifactFilter(Struct, frozen=True, gc=False):
    """Fields are joined by AND; an empty one matches all."""

    principal: str = ""
    sha256: str = ""
    task_id: str = ""
    call_id: str = ""
    owners: Owners | None = None


# Ports of large values: what is known of them, their bytes, and how a call keeps and reads them.


class ArtifactRecords(Protocol):
    """What is known of artifacts. Raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached."""

    async def add(self, artifact: Artifact) -> None:
        """Durable when it returns."""

    async def get(self, artifact_id: str) -> Artifact | None:
        """Expired ones, too, until they are removed: the caller looks at the time."""

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]: ...

    async def page(
        self,
        principal: str,
        sha256: str,
        *,
        after: tuple[int, str] | None,
        limit: int,
        owners: Owners | None = None,
    ) -> Sequence[Artifact]:
        """Those that expire last first, strictly after the cursor (expires_at_unix_ms, artifact_id), expired ones, too;
        an empty principal or digest, or None for `owners`, matches all."""

    # Artifacts with the same content share their bytes, which must outlive the first of them that is removed.
    async def remove(self, artifact_id: str) -> bool:
        """Forget one. True when no other artifact has the same sha256, so that its bytes may go."""

    async def usage(self, principal: str) -> tuple[int, int]:
        """How many artifacts the principal owns, and their bytes."""

    async def usage_of(self, owners: Owners) -> tuple[int, int]:
        """The same of all those principals together."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class BlobWriter(Protocol):
    """Bytes on their way into the store. `finish` or `abort` ends it, once."""

    async def write(self, chunk: bytes) -> None: ...

    async def finish(self) -> tuple[str, int]:
        """sha256 (hex) and size in bytes of what was written, which is durable now."""

    async def abort(self) -> None:
        """Leave no trace. Does nothing after `finish`."""


class Blobs(Protocol):
    """Bytes under their sha256. Raises ToolFailure IO_ERROR or TOOL_UNAVAILABLE when it cannot read or write."""

    async def writer(self) -> BlobWriter: ...

    def read(self, sha256: str, offset_bytes: int, limit_bytes: int) -> AsyncIterator[bytes]:
        """Chunks of 1 to 262144 bytes. Raises ToolFailure NOT_FOUND when there are none under that digest."""

    async def remove(self, sha256: str) -> None:
        """Does nothing when they are gone."""

    async def close(self) -> None: ...


class ArtifactService(Protocol):
    """How tools and adapters keep large values and read those they are given."""

    async def keep(
        self,
        chunks: AsyncIterator[bytes],
        *,
        call: Call,
        media_type: str = OCTETS,
        name: str = "",
    ) -> Artifact:
        """Store a call's output. Raises ToolFailure FILE_TOO_LARGE beyond the cap, BUDGET_EXCEEDED beyond the quota."""

    async def release(self, artifact_ids: Sequence[str]) -> None:
        """Take back what was kept for a call that has failed since, so that no quota counts what nobody was told of.
        Never raises for a store that is away: what is left expires in time."""

    async def open(self, principal_id: str, artifact_id: str) -> Artifact:
        """Raises ToolFailure NOT_FOUND when unknown, expired or somebody else's."""

    def read(self, artifact: Artifact, offset_bytes: int = 0, limit_bytes: int = 0) -> AsyncIterator[bytes]:
        """Its bytes; a limit of 0 means to the end."""
