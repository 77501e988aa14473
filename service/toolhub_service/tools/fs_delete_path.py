"""core/fs.deletePath: delete a file or a folder, for good."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_values import AnyPath
from toolhub_service.tools.io_failures import failure_of
from toolhub_service.tools.off_loop import off_loop
from toolhub_service.tools.removal import Removed
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import Workspace


class DeletePath(Tool["DeletePath.In", "DeletePath.Out"]):
    name = "core/fs.deletePath"
    description = (
        "Delete a file, a link or an empty folder of the workspace, or with recursive=true a folder and all in it. "
        "There is no way back; confirm must be true. Returns how many files, folders and bytes went."
    )
    tags = ("files", "write", "delete", "remove")
    capabilities = frozenset({capability.WRITE_FS, capability.DANGER_DESTRUCTIVE})
    annotations = Annotations(destructive=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_WRITE),)
    examples = (
        Example("Delete a file", {"path": "old.log", "confirm": True}),
        Example("Delete a folder", {"path": "build", "recursive": True, "confirm": True}),
    )

    class In(ToolInput, frozen=True):
        path: AnyPath
        recursive: Annotated[bool, Meta(description="Delete a folder with all in it.")] = False
        confirm: Annotated[bool, Meta(description="Must be true.")] = False

    class Out(ToolOutput, frozen=True):
        deleted: Annotated[bool, Meta(description="True: what stood there is gone.")]
        files: Annotated[int, Meta(description="Deleted files and links.")]
        folders: Annotated[int, Meta(description="Deleted folders.")]
        bytes: Annotated[int, Meta(description="Size of the deleted files.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        path = _confirmed(args)
        removed = await _remove(context.workspace, path, args.recursive)
        summary = f"deleted {removed.files} files and {removed.folders} folders, {removed.size_bytes} bytes"
        context.proves(EvidenceType.FILE, path, summary)
        return self.Out(deleted=True, files=removed.files, folders=removed.folders, bytes=removed.size_bytes)

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        path = _confirmed(args)
        counted = context.workspace.count(path)
        if counted.folders and counted.files + counted.folders > 1 and not args.recursive:
            raise failure_of(OSError(errno.ENOTEMPTY, ""), path)
        return (f'Delete "{path}": {counted}. There is no way back.',)


def _confirmed(args: DeletePath.In) -> str:
    """The path that may be deleted. Raises ToolFailure INVALID_INPUT."""
    if not args.confirm:
        message = "Deleting needs confirm true. Make sure of the path, then call again with confirm set to true."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return judge_path(args.path)


async def _remove(workspace: Workspace, path: str, recursive: bool) -> Removed:
    if recursive or workspace.expects:
        return await off_loop(lambda stop: workspace.remove(path, recursive=recursive, stop=stop))
    return workspace.remove(path)
