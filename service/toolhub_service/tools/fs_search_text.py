"""core/fs.searchText: lines that hold a text or match a regular expression.

Bounds: files by `maxFiles` and the sandbox, bytes by 20 times `max_read_bytes` in all and `max_read_bytes` a file (of a
larger one the beginning is searched), matches by `maxMatches`; whichever cuts sets `truncated`, and so does what may
not be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.constraints import Sandbox
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.folder_walk import FolderWalk
from toolhub_service.tools.fs_values import FolderPath
from toolhub_service.tools.glob import compile_glob
from toolhub_service.tools.off_loop import off_loop
from toolhub_service.tools.text_search import compile_query, is_binary, matching_lines
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import Workspace

_TOTAL_FACTOR = 20
_DEFAULT_GLOB = "**/*.{md,txt,log,json,ts,js,py,java,scala}"


class TextMatch(ToolOutput, frozen=True):
    file: Annotated[str, Meta(description="Relative to the workspace.")]
    line: Annotated[int, Meta(description="From 1.")]
    excerpt: Annotated[str, Meta(description="The line, or what surrounds the match in a long one.")]


class SearchText(Tool["SearchText.In", "SearchText.Out"]):
    name = "core/fs.searchText"
    description = (
        "Find the lines that hold a text (case matters), or with regex=true match an RE2 expression ((?i) ignores "
        "case; no look-around), in the files beneath a folder of the workspace whose path matches glob. Binary and "
        "hidden files are skipped. Returns file, line number and excerpt; read on with core/fs.readText."
    )
    tags = ("files", "read", "search", "grep", "text")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
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
        search = _Search(args, context.workspace, context.constraints.sandbox)
        found = await off_loop(search.run)
        context.truncated = found.truncated
        summary = f"{len(found.matches)} matches in {search.files} files"
        context.proves(EvidenceType.FILE, search.root, summary, searched_bytes=str(search.searched_bytes))
        return found


class _Search:
    """One search; runs in a thread."""

    def __init__(self, args: SearchText.In, workspace: Workspace, sandbox: Sandbox) -> None:
        self.root = judge_path(args.root)
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
        for match in self._matches(walk, stop):
            if len(matches) == self._max_matches:
                self._cut = True
                break
            matches.append(match)
        return SearchText.Out(matches=matches, truncated=self._cut or walk.truncated)

    def _matches(self, walk: FolderWalk, stop: threading.Event) -> Iterator[TextMatch]:
        for entry in walk:
            if entry.type != "file" or not self._is_wanted(entry.inner_path):
                continue
            if self.files == self._max_files or self._left_bytes <= 0:
                self._cut = True
                return
            yield from self._matches_in(entry.path, stop)

    def _matches_in(self, path: str, stop: threading.Event) -> Iterator[TextMatch]:
        data = self._content(path)
        if data is None or is_binary(data):
            return
        for found in matching_lines(self._expression, data, stop):
            yield TextMatch(file=path, line=found.line, excerpt=found.excerpt)

    def _content(self, path: str) -> bytes | None:
        """The file's beginning; None when it may not be read, vanished or was swapped since the folder was listed."""
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
