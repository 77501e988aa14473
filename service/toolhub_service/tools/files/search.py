"""The file tools that search folders: core/fs.findFiles, listDir and searchText.

A search is bounded: files by `maxFiles` and the sandbox, bytes by 20 times `max_read_bytes` in all and `max_read_bytes`
a file (of a larger one the beginning is searched), matches by `maxMatches`, work by 5 s of processor time, and by the
call's deadline, before which it ends; reaching any of these sets `truncated`, and so does an unreadable file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import re2
from msgspec import Meta

from toolhub_service.aio.threads import raise_if_cancelled, to_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import ArgumentRole, Example, GuardedArgument
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.guards.paths import check_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.values import FolderPath, FsReadTool, iso_time
from toolhub_service.tools.tool import ToolInput, ToolOutput
from toolhub_service.tools.workspace.folder_walk import MAX_DEPTH, Entry, FolderWalk, compile_glob
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
    size_bytes, modified_at = entry.status.size_bytes, iso_time(entry.status.modified_at_s)
    return ListedEntry(name=name, type=entry.type, size=size_bytes, modified_at=modified_at)


# Finding text in files line by line, with RE2: time linear in the text for any expression.
#
# Linear can still be slow: RE2 takes up to 20 µs a byte for a large program, so programs are limited, and a file is
# searched in blocks of lines, which are smaller for a large program. Between two blocks (at most about 0.3 s each; RE2
# holds no lock meanwhile) a search ends when it is cancelled, and with what it has found when its work is done.
# Processor time and not elapsed time: on a busy machine the same search finds the same.
#
# `never_nl` keeps a match within its line and `(?m)` makes ^ and $ match at line ends, so that a block is searched in
# one pass. A line longer than a block is searched in pieces. A file with a NUL in its first 8 KiB counts as binary (as
# in git and grep).

_BLOCK_BYTES = 64 * 1024
_HEAVY_BLOCK_BYTES = 8 * 1024
_HEAVY_PROGRAM_SIZE = 500
_WORK_S = 5.0
# Share of the remaining time, at most `_RESERVE_S`, reserved for returning what was found before the call's deadline.
_RESERVE = 0.1
_RESERVE_S = 1.0
_PROGRAM_SIZE = 4000
_BINARY_PROBE_BYTES = 8192
_EXCERPT_BYTES = 240
_LEAD_BYTES = 80
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_nl = True
_OPTIONS.max_mem = 1 << 20


def compile_query(query: str, *, regex: bool) -> Any:
    """Return a compiled RE2 expression on bytes. Raises ToolFailure INVALID_INPUT for one that RE2 refuses or that is
    too large."""
    if not regex and ("\n" in query or "\r" in query):
        raise refuse(ErrorKind.INVALID_INPUT, "The query spans lines. Search for a text within one line.")
    try:
        pattern = query.encode() if regex else re2.escape(query.encode())
        expression = re2.compile(b"(?m)" + pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        message = (
            "The regular expression cannot be used: it is malformed, or uses look-around or back-references, which "
            "RE2 lacks. Repair it, or set regex to false to search for the text itself."
        )
        raise refuse(ErrorKind.INVALID_INPUT, message) from None
    if regex and expression.programsize > _PROGRAM_SIZE:
        message = "The regular expression is too large. Use * and + where it counts to large numbers with {n,m}."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return expression


class WorkDone(Exception):
    """The work that a search may do is done; what it has found so far is its result."""


class SearchWork:
    """How much work is left to one search: made in the thread that does it."""

    def __init__(
        self,
        until_s: float,
        *,
        spent_s: Callable[[], float] = time.thread_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`until_s`: when the search must end, on the clock `now_s`; `spent_s`: processor time of this thread."""
        self._spent_s = spent_s
        self._now_s = now_s
        self._until_s = until_s
        self._spent_max_s = spent_s() + _WORK_S

    def check(self) -> None:
        """Raise WorkDone when no more may be done."""
        if self._spent_s() >= self._spent_max_s or self._now_s() >= self._until_s:
            raise WorkDone


def matching_lines(
    expression: Any, data: bytes, stop: threading.Event | None = None, work: SearchWork | None = None
) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and excerpt of each matching line, once.

    Raises ToolFailure CANCELLED within a block after `stop` is set, and WorkDone likewise.
    """
    line, counted_to, at = 1, 0, 0
    block_bytes = _HEAVY_BLOCK_BYTES if expression.programsize > _HEAVY_PROGRAM_SIZE else _BLOCK_BYTES
    for begin, end in _blocks(data, block_bytes):
        raise_if_cancelled(stop)
        if work is not None:
            work.check()
        at = max(at, begin)
        while at < end:
            match = expression.search(data, at, end)
            # A match at the very end of a block belongs to the next one.
            if match is None or match.start() >= end:
                break
            start = match.start()
            line += data.count(b"\n", counted_to, start)
            counted_to = start
            line_end = data.find(b"\n", start)
            line_end = len(data) if line_end < 0 else line_end
            yield line, _excerpt(data, start, line_end)
            at = line_end + 1


def _blocks(data: bytes, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each block: it ends behind a line feed, or within a line that is longer than a block."""
    begin = 0
    while begin < len(data):
        end = min(begin + block_bytes, len(data))
        if end < len(data):
            # 0 where a block has no line end: such a line is searched in pieces.
            end = data.rfind(b"\n", begin, end) + 1 or end
        yield begin, end
        begin = end


def _excerpt(data: bytes, match_start: int, line_end: int) -> str:
    """Return the line, or of a long one the text around the match."""
    line_start = data.rfind(b"\n", 0, match_start) + 1
    begin = max(line_start, match_start - _LEAD_BYTES) if line_end - line_start > _EXCERPT_BYTES else line_start
    end = min(line_end, begin + _EXCERPT_BYTES)
    text = data[begin:end].decode("utf-8", "replace").strip("\r\ufffd")
    return f"{'…' if begin > line_start else ''}{text}{'…' if end < line_end else ''}"


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
        self._until_s = deadline_s - min(_RESERVE_S, left_s * _RESERVE)
        self.is_late = False
        """Whether it ended because its work was done, with what it had found."""
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
            if data is None or data.find(b"\0", 0, _BINARY_PROBE_BYTES) >= 0:
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
