"""The file tools that search folders: core/fs.findFiles, listDir and searchText.

A search is bounded: files by `maxFiles` and the sandbox, bytes by 20 times `max_read_bytes` in all and `max_read_bytes`
a file (of a larger one the beginning is searched), matches by `maxMatches`, work by 5 s of processor time, and by the
call's deadline, before which it ends; reaching any of these sets `truncated`, and so does an unreadable file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from toolhub_service.aio.threads import to_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import ArgumentRole, Example, GuardedArgument
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.guards.paths import check_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.line_search import (
    BINARY_PROBE_BYTES,
    RESERVE,
    RESERVE_S,
    SearchWork,
    WorkDone,
    compile_query,
    matching_lines,
)
from toolhub_service.tools.files.values import FolderPath, FsReadTool, iso_time
from toolhub_service.tools.tool import ToolInput, ToolOutput
from toolhub_service.tools.workspace.folder_walk import MAX_DEPTH, Entry, FolderWalk
from toolhub_service.tools.workspace.globs import compile_glob
from toolhub_service.tools.workspace.workspace import FileType, Workspace

# core/fs.findFiles: files and folders by name.


class FoundFile(ToolOutput, frozen=True):
    path: Annotated[str, Meta(description="Relative to the workspace.")]
    type: FileType


class FindFiles(FsReadTool["FindFiles.In", "FindFiles.Out"]):
    name = "core/fs.findFiles"
    description = (
        "Find files and folders beneath a folder of the workspace by name: * and ? as in a shell, {a,b} for either, ** "
        "for any folders. A pattern without / is matched with the name alone. Hidden names are found when the pattern "
        "begins with a dot or names a dotted folder. To search in contents use core/fs.searchText."
    )
    tags = ("files", "read", "search", "find")
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
        path = check_path(args.path)
        found = await to_thread(partial(_find, context.workspace, args, path))
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
        if args.type in ("all", entry.type) and matches_name(entry.inner_path):
            if len(matches) == args.limit:
                return FindFiles.Out(matches=matches, truncated=True)
            matches.append(FoundFile(path=entry.path, type=entry.type))
    return FindFiles.Out(matches=matches, truncated=walk.truncated)


# core/fs.listDir: the entries of a folder.


class ListedEntry(ToolOutput, frozen=True):
    name: Annotated[str, Meta(description="Relative to the listed folder.")]
    type: FileType
    size: Annotated[int, Meta(description="Bytes; of no meaning for folders.")]
    modified_at: Annotated[str, Meta(description="ISO 8601, UTC.")]


class ListDir(FsReadTool["ListDir.In", "ListDir.Out"]):
    name = "core/fs.listDir"
    description = (
        "List a folder of the workspace, sorted by name: name, type, size and time of change of each entry; with "
        "recursive also what is beneath, links never followed. To look for certain names use core/fs.findFiles."
    )
    tags = ("files", "read", "list", "directory")
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
        path = check_path(args.path)
        listed = await to_thread(partial(_list, context.workspace, args, path))
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
        entries.append(_listed_entry(entry))
    return ListDir.Out(entries=entries, truncated=walk.truncated)


def _listed_entry(entry: Entry) -> ListedEntry:
    name = entry.inner_path
    if entry.status is None:
        return ListedEntry(name=name, type=entry.type, size=0, modified_at="")
    size_bytes = entry.status.size_bytes
    modified_at = iso_time(entry.status.modified_at_s)
    return ListedEntry(name=name, type=entry.type, size=size_bytes, modified_at=modified_at)


_TOTAL_FACTOR = 20
_DEFAULT_GLOB = "**/*.{md,txt,log,json,ts,js,py,java,scala}"


class TextMatch(ToolOutput, frozen=True):
    file: Annotated[str, Meta(description="Relative to the workspace.")]
    line: Annotated[int, Meta(description="From 1.")]
    excerpt: Annotated[str, Meta(description="The line, or what surrounds the match in a long one.")]


class SearchText(FsReadTool["SearchText.In", "SearchText.Out"]):
    name = "core/fs.searchText"
    description = (
        "Search in files: find the lines that hold a text (case matters), or with regex=true match an RE2 "
        "expression ((?i) ignores case; no look-around), in the files beneath a folder of the workspace whose path "
        "matches glob. Binary and hidden files are skipped. Returns file, line number and excerpt; read on with "
        "core/fs.readText."
    )
    tags = ("files", "read", "search", "grep", "text")
    guarded = (GuardedArgument("root", ArgumentRole.PATH_READ),)
    examples = (
        Example("Find a word in logs", {"root": "logs", "query": "ERROR", "glob": "**/*.log"}),
        Example("Find definitions", {"root": ".", "query": r"^def \w+", "regex": True, "glob": "**/*.py"}),
    )

    class In(ToolInput, frozen=True):
        root: FolderPath
        query: Annotated[str, Meta(description="Text or expression.", min_length=1, max_length=1000)]
        glob: Annotated[str, Meta(description="Which files, relative to root.", min_length=1, max_length=1000)] = (
            _DEFAULT_GLOB
        )
        max_matches: Annotated[int, Meta(description="Most matches to return.", ge=1, le=5000)] = 100
        max_files: Annotated[int, Meta(description="Most files to search.", ge=1, le=2000)] = 2000
        regex: Annotated[bool, Meta(description="Whether query is a regular expression.")] = False

    class Out(ToolOutput, frozen=True):
        matches: list[TextMatch]
        truncated: Annotated[
            bool, Meta(description="Whether there may be more: a bound cut the search, or something could not be read.")
        ]

    async def run(self, args: In, context: ToolContext) -> Out:
        search = _Search(args, context.workspace, context.constraints.sandbox, context.deadline_s)
        found = await to_thread(search.run)
        context.truncated = found.truncated
        ended = "; ended early: search fewer files, or for a simpler expression" if search.is_late else ""
        summary = f"{len(found.matches)} matches in {search.files} files{ended}"
        context.proves(EvidenceType.FILE, search.root, summary, searched_bytes=str(search.searched_bytes))
        return found


class _Search:
    """One search; runs in a thread."""

    def __init__(self, args: SearchText.In, workspace: Workspace, sandbox: Sandbox, deadline_s: float) -> None:
        """`deadline_s`: of the call, on the loop's clock, which is the monotonic one."""
        left_s = max(0.0, deadline_s - time.monotonic())
        self._until_s = deadline_s - min(RESERVE_S, left_s * RESERVE)
        self.is_late = False
        """Whether it ended early, with the matches so far, because its time was used."""
        self.root = check_path(args.root)
        self.files = 0
        self.searched_bytes = 0
        self._cut = False
        self._workspace = workspace
        self._max_matches = args.max_matches
        self._max_files = min(args.max_files, sandbox.max_search_files)
        self._file_bytes = sandbox.max_read_bytes
        self._left_bytes = _TOTAL_FACTOR * sandbox.max_read_bytes
        self._is_wanted = compile_glob(args.glob)
        self._expression: Any = compile_query(args.query, regex=args.regex)

    def run(self, stop: threading.Event) -> SearchText.Out:
        matches: list[TextMatch] = []
        walk = FolderWalk(self._workspace, self.root, stop=stop)
        try:
            for match in self._matches(walk, stop, SearchWork(self._until_s)):
                if len(matches) == self._max_matches:
                    self._cut = True
                    break
                matches.append(match)
        except WorkDone:
            self._cut = self.is_late = True
        return SearchText.Out(matches=matches, truncated=self._cut or walk.truncated)

    def _matches(self, walk: FolderWalk, stop: threading.Event, work: SearchWork) -> Iterator[TextMatch]:
        for entry in walk:
            work.check()
            if entry.type != "file" or not self._is_wanted(entry.inner_path):
                continue
            if self.files == self._max_files or self._left_bytes <= 0:
                self._cut = True
                return
            data = self._content(entry.path)
            if data is None or data.find(b"\0", 0, BINARY_PROBE_BYTES) >= 0:
                continue
            for line, excerpt in matching_lines(self._expression, data, stop, work):
                yield TextMatch(file=entry.path, line=line, excerpt=excerpt)

    def _content(self, path: str) -> bytes | None:
        """Return the file's beginning; None when it may not be read, vanished or was replaced since the folder was
        listed."""
        try:
            with self._workspace.open_read(path) as file:
                data = file.read(min(self._file_bytes, self._left_bytes))
                self._cut |= file.size_bytes > len(data)
        except ToolFailure as failure:
            if failure.error.kind is ErrorKind.CANCELLED:
                raise
            self._cut |= failure.error.kind is ErrorKind.IO_ERROR
            return None
        self.files += 1
        self.searched_bytes += len(data)
        self._left_bytes -= len(data)
        return data
