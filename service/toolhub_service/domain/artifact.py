"""Large values by reference: content-addressed, owned, expiring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    artifact_id: str
    sha256: str
    size_bytes: int
    media_type: str = "application/octet-stream"
    name: str = ""
    expires_at_unix_ms: int = 0
