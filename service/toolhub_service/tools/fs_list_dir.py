"""core/fs.listDir: what is in a folder."""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.folder_walk import Entry, FolderWalk
from toolhub_service.tools.fs_values import FolderPath, iso_time
from toolhub_service.tools.off_loop import off_loop
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import FileType, Workspace


class ListedEntry(ToolOutput, frozen=True):
    name: Annotated[str, Meta(description="Relative to the listed folder.")]
    type: FileType
    size: Annotated[int, Meta(description="Bytes; of no meaning for folders.")]
    modified_at: Annotated[str, Meta(description="ISO 8601, UTC.")]


class ListDir(Tool["ListDir.In", "ListDir.Out"]):
    name = "core/fs.listDir"
    description = (
        "List a folder of the workspace, sorted by name: name, type, size and time of change of each entry; with "
        "recursive also what is beneath, links never followed. To look for certain names use core/fs.findFiles."
    )
    tags = ("files", "read", "list", "directory")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
    examples = (
        Example("List the workspace", {"path": "."}),
        Example("List two levels", {"path": "src", "recursive": True, "maxDepth": 2}),
    )

    class In(ToolInput, frozen=True):
        path: FolderPath
        max_entries: Annotated[int, Meta(description="Most entries to return.", ge=1, le=5000)] = 2000
        include_hidden: Annotated[bool, Meta(description="Also names that begin with a dot.")] = False
        recursive: Annotated[bool, Meta(description="Also what is in inner folders.")] = False
        max_depth: Annotated[int, Meta(description="Levels to list when recursive.", ge=1, le=10)] = 10

    class Out(ToolOutput, frozen=True):
        entries: list[ListedEntry]
        truncated: Annotated[bool, Meta(description="Whether there may be more entries.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        path = judge_path(args.path)
        listed = await off_loop(partial(_list, context.workspace, args, path))
        context.truncated = listed.truncated
        context.proves(EvidenceType.FILE, path, f"listed {len(listed.entries)} entries")
        return listed


def _list(workspace: Workspace, args: ListDir.In, path: str, stop: threading.Event) -> ListDir.Out:
    walk = FolderWalk(
        workspace,
        path,
        stop=stop,
        max_depth=args.max_depth if args.recursive else 1,
        include_hidden=args.include_hidden,
        with_status=True,
    )
    entries: list[ListedEntry] = []
    for entry in walk:
        if len(entries) == args.max_entries:
            return ListDir.Out(entries=entries, truncated=True)
        entries.append(_told(entry))
    return ListDir.Out(entries=entries, truncated=walk.truncated)


def _told(entry: Entry) -> ListedEntry:
    name = entry.inner_path
    if entry.status is None:
        return ListedEntry(name=name, type=entry.type, size=0, modified_at="")
    size_bytes, modified_at = entry.status.size_bytes, iso_time(entry.status.modified_at_s)
    return ListedEntry(name=name, type=entry.type, size=size_bytes, modified_at=modified_at)
