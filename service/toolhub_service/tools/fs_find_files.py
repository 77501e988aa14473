"""core/fs.findFiles: files and folders by name."""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.folder_walk import MAX_DEPTH, Entry, FolderWalk
from toolhub_service.tools.fs_values import FolderPath
from toolhub_service.tools.glob import compile_glob
from toolhub_service.tools.off_loop import off_loop
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import FileType, Workspace


class FoundFile(ToolOutput, frozen=True):
    path: Annotated[str, Meta(description="Relative to the workspace.")]
    type: FileType


class FindFiles(Tool["FindFiles.In", "FindFiles.Out"]):
    name = "core/fs.findFiles"
    description = (
        "Find files and folders beneath a folder of the workspace by name: * and ? as in a shell, {a,b} for either, ** "
        "for any folders. A pattern without / is matched with the name alone. Hidden names are found when the pattern "
        "begins with a dot or names a dotted folder. To search in contents use core/fs.searchText."
    )
    tags = ("files", "read", "search", "find")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
    examples = (
        Example("Find PDF files", {"path": ".", "pattern": "*.pdf", "type": "file"}),
        Example("Find test folders", {"path": "src", "pattern": "test*", "type": "dir", "maxDepth": 3}),
    )

    class In(ToolInput, frozen=True):
        path: FolderPath
        pattern: Annotated[str, Meta(description="Name pattern.", min_length=1, max_length=1000)] = "*"
        type: Annotated[Literal["file", "dir", "all"], Meta(description="What to find.")] = "all"
        max_depth: Annotated[int, Meta(description="Levels to descend; -1 or 0: all.", ge=-1, le=MAX_DEPTH)] = -1
        limit: Annotated[int, Meta(description="Most matches to return.", ge=1, le=100)] = 20

    class Out(ToolOutput, frozen=True):
        matches: list[FoundFile]
        truncated: Annotated[bool, Meta(description="Whether there may be more matches.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        path = judge_path(args.path)
        found = await off_loop(partial(_find, context.workspace, args, path))
        context.truncated = found.truncated
        context.proves(EvidenceType.FILE, path, f"found {len(found.matches)} names for {args.pattern}")
        return found


def _find(workspace: Workspace, args: FindFiles.In, path: str, stop: threading.Event) -> FindFiles.Out:
    matches_name = compile_glob(args.pattern)
    walk = FolderWalk(
        workspace,
        path,
        stop=stop,
        max_depth=args.max_depth if args.max_depth > 0 else MAX_DEPTH,
        include_hidden=args.pattern.startswith(".") or "/." in args.pattern,
    )
    matches: list[FoundFile] = []
    for entry in walk:
        if _is_asked_for(entry, args.type) and matches_name(entry.inner_path):
            if len(matches) == args.limit:
                return FindFiles.Out(matches=matches, truncated=True)
            matches.append(FoundFile(path=entry.path, type=entry.type))
    return FindFiles.Out(matches=matches, truncated=walk.truncated)


def _is_asked_for(entry: Entry, type: str) -> bool:
    return type in ("all", entry.type)
