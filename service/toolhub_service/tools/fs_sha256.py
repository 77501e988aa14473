"""core/fs.sha256: the digest of a file, for evidence and for telling whether it changed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_values import FilePath, Sha256
from toolhub_service.tools.off_loop import off_loop_if_large
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
            sha256, read_bytes = await off_loop_if_large(file.size_bytes, file.digest)
            context.proves(EvidenceType.FILE, file.path, f"hashed {read_bytes} bytes", sha256=sha256)
            return self.Out(sha256=sha256, bytes=read_bytes)
