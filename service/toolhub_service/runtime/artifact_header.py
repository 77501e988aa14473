"""What a writer says of an artifact before its bytes: judged when a client uploads, made harmless when a tool keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolhub_service.domain.artifact import OCTETS
from toolhub_service.domain.errors import HubFailure, HubStatus

NAME_MAX_CHARS = 255
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(;[ -~]*)?")
"""RFC 6838, with parameters."""
_FOLDERS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class ArtifactHeader:
    """Everything may be left out."""

    media_type: str = ""
    name: str = ""
    """For people; no folders."""
    task_id: str = ""
    size_bytes: int = 0
    """Exact when it is not 0."""
    sha256: str = ""
    """64 lower-case hex digits, exact when not empty."""


def judge_header(header: ArtifactHeader) -> None:
    """Raises HubFailure INVALID_ARGUMENT for a name that could lead astray and for what is no media type."""
    if header.name and plain_name(header.name) != header.name:
        raise HubFailure(
            HubStatus.INVALID_ARGUMENT,
            "BAD_NAME",
            "Its name must be a file name without folders and control characters; change it or leave it out.",
        )
    if header.media_type and plain_media_type(header.media_type) != header.media_type:
        raise HubFailure(
            HubStatus.INVALID_ARGUMENT,
            "BAD_MEDIA_TYPE",
            "The artifact's media type must read type/subtype, such as text/plain; change it or leave it out.",
        )


def judge_whole(header: ArtifactHeader, size_bytes: int, sha256: str) -> None:
    """Whether what came is what was declared. Raises HubFailure INVALID_ARGUMENT."""
    if header.size_bytes and size_bytes != header.size_bytes:
        told = "more" if size_bytes > header.size_bytes else f"only {size_bytes}"
        raise HubFailure(
            HubStatus.INVALID_ARGUMENT,
            "SIZE_MISMATCH",
            f"{header.size_bytes} bytes were declared and {told} came; nothing was kept. Send it again.",
        )
    if sha256 != header.sha256:
        raise HubFailure(
            HubStatus.INVALID_ARGUMENT,
            "DIGEST_MISMATCH",
            f"What came digests to {sha256}, not to what was declared; nothing was kept. Send it again.",
        )


def plain_name(name: str) -> str:
    """The last component, without control characters and direction marks; empty when nothing is left of it."""
    last = "".join(char for char in _FOLDERS.split(name)[-1] if char.isprintable())[:NAME_MAX_CHARS]
    return "" if last in (".", "..") else last


def plain_media_type(media_type: str) -> str:
    """As declared, or octets when it is no media type."""
    return media_type if len(media_type) <= 255 and _MEDIA_TYPE.fullmatch(media_type) else OCTETS
