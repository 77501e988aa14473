"""Large values by reference: content-addressed, owned, expiring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact as results and jobs name it."""

    artifact_id: str
    sha256: str
    size_bytes: int
    media_type: str = OCTETS
    name: str = ""
    expires_at_unix_ms: int = 0


class Artifact(NamedTuple):
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
