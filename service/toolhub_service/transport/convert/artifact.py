"""Artifacts both ways."""

from __future__ import annotations

from toolhub.v1 import artifact_pb2, artifact_service_pb2
from toolhub_service.domain.artifact import Artifact
from toolhub_service.runtime.artifact_header import ArtifactHeader
from toolhub_service.transport.convert.payload import timestamp


def from_artifact(artifact: Artifact) -> artifact_pb2.Artifact:
    return artifact_pb2.Artifact(
        artifact_id=artifact.artifact_id,
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        media_type=artifact.media_type,
        name=artifact.name,
        principal=artifact.principal,
        task_id=artifact.task_id,
        call_id=artifact.call_id,
        created_at=timestamp(artifact.created_at_unix_ms),
        expires_at=timestamp(artifact.expires_at_unix_ms),
    )


def to_header(message: artifact_service_pb2.ArtifactHeader) -> ArtifactHeader:
    return ArtifactHeader(
        media_type=message.media_type,
        name=message.name,
        task_id=message.task_id,
        size_bytes=message.size_bytes,
        sha256=message.sha256,
    )
