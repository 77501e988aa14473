"""core/fs.sha256: the digest of a file, for evidence and for telling whether it changed."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_values import FilePath, Sha256
from toolhub_service.tools.off_loop import INLINE_BYTES, off_loop
from toolhub_service.tools.source_file import SourceFile
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class FileSha256(Tool["FileSha256.In", "FileSha256.Out"]):
    name = "core/fs.sha256"
    description = (
        "Compute the SHA-256 of a file of the workspace, of any size and kind: to prove what was written or to see "
        "whether it changed, without reading it."
    )
    tags = ("files", "read", "hash", "checksum")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
    examples = (Example("Hash a file", {"path": "report.pdf"}),)

    class In(ToolInput, frozen=True):
        path: FilePath

    class Out(ToolOutput, frozen=True):
        sha256: Sha256
        bytes: Annotated[int, Meta(description="Size of the file.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        with context.workspace.open_read(args.path) as file:
            digest = partial(_digest, file)
            hashed = digest() if file.size_bytes <= INLINE_BYTES else await off_loop(digest)
            context.proves(EvidenceType.FILE, file.path, f"hashed {hashed.bytes} bytes", sha256=hashed.sha256)
            return hashed


def _digest(file: SourceFile, stop: threading.Event | None = None) -> FileSha256.Out:
    sha256, size_bytes = hashlib.sha256(), 0
    for data in file.chunks(stop):
        sha256.update(data)
        size_bytes += len(data)
    return FileSha256.Out(sha256=sha256.hexdigest(), bytes=size_bytes)
