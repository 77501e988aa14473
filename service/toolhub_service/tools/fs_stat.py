"""core/fs.stat: what stands at a path."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_values import AnyPath, iso_time
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import FileType


class Stat(Tool["Stat.In", "Stat.Out"]):
    name = "core/fs.stat"
    description = (
        "Tell what stands at a path of the workspace: its type (file, dir, link, other), size in bytes and time of "
        "change. NOT_FOUND when there is nothing. Use it before reading a file that may be large."
    )
    tags = ("files", "read", "metadata", "exists")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
    examples = (Example("Look at a file", {"path": "data/big.csv"}),)

    class In(ToolInput, frozen=True):
        path: AnyPath

    class Out(ToolOutput, frozen=True):
        type: FileType
        size: Annotated[int, Meta(description="Bytes; of no meaning for folders.")]
        modified_at: Annotated[str, Meta(description="ISO 8601, UTC.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        status = context.workspace.stat(args.path)
        context.proves(EvidenceType.FILE, judge_path(args.path), f"{status.type} of {status.size_bytes} bytes")
        return self.Out(type=status.type, size=status.size_bytes, modified_at=iso_time(status.modified_at_s))
