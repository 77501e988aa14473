"""listDir, findFiles, searchText, and the declarations of all file tools."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
import threading
from pathlib import Path

import msgspec
import pytest

from tests.fakes.file_calls import OPENINGS, FileCalls, descriptors
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, WRITE_FS, ArgumentRole
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.tools.files import line_search
from toolhub_service.tools.files.line_search import SearchWork, WorkDone, compile_query, matching_lines
from toolhub_service.tools.files.tools import fs_tools
from toolhub_service.tools.tool import spec_of
from toolhub_service.tools.workspace.folder_walk import FolderWalk
from toolhub_service.tools.workspace.globs import compile_glob
from toolhub_service.tools.workspace.opening import best_opening
from toolhub_service.tools.workspace.workspace import Workspace


@pytest.fixture(params=OPENINGS)
def calls(request: pytest.FixtureRequest, tmp_path: Path) -> FileCalls:
    return FileCalls(tmp_path / "work", OPENINGS[request.param])


@pytest.fixture
def tree(calls: FileCalls) -> FileCalls:
    calls.put("README.md", "# Title\nhello world\n")
    calls.put("src/main.py", "import os\n\ndef main() -> None:\n    print('hello')\n")
    calls.put("src/deep/er/util.py", "def util():\n    return 'Hello'\n")
    calls.put("src/data.bin", b"hello\0world")
    calls.put("logs/app.log", "".join(f"{n} line\n" for n in range(1, 51)))
    calls.put(".hidden/secret.txt", "hello\n")
    calls.put(".env", "hello=1\n")
    calls.put("image.png", b"hello png")
    (calls.root / "away").symlink_to("/etc")
    return calls


async def names(calls: FileCalls, **args: object) -> list[str]:
    return [entry["name"] for entry in (await calls("listDir", **args))["entries"]]


async def test_a_folder_is_listed_sorted_and_without_hidden_names(tree: FileCalls) -> None:
    listed = await tree("listDir", path=".")
    assert [(entry["name"], entry["type"]) for entry in listed["entries"]] == [
        ("README.md", "file"),
        ("away", "link"),
        ("image.png", "file"),
        ("logs", "dir"),
        ("src", "dir"),
    ]
    assert listed["entries"][0]["size"] == 20
    assert listed["entries"][0]["modifiedAt"].endswith("Z")
    assert not listed["truncated"]
    assert tree.context.evidence[0].summary == "listed 5 entries"


async def test_hidden_names_are_listed_when_asked_but_never_drafts(tree: FileCalls) -> None:
    tree.put(".toolhub-0123456789abcdef")
    assert (await names(tree, path=".", includeHidden=True))[:2] == [".env", ".hidden"]


class UnreadableFolder:
    """Refuses to open one folder."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, root: int, path: str, flags: int) -> int:
        if path == self._path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return best_opening()(root, path, flags)


async def test_an_unreadable_path_is_reported_as_missing(tmp_path: Path) -> None:
    calls = FileCalls(tmp_path / "work", UnreadableFolder("a/shut"))
    calls.put("a/open/one.txt", "hello")
    calls.put("a/shut/two.txt", "hello")
    for name, args in (
        ("listDir", {"path": "a", "recursive": True}),
        ("findFiles", {"path": "a", "pattern": "*.txt"}),
        ("searchText", {"root": "a", "query": "hello"}),
    ):
        assert (await calls(name, **args))["truncated"], name
        assert calls.context.truncated
    shut_file = FileCalls(tmp_path / "work", UnreadableFolder("a/open/one.txt"))
    assert await shut_file("searchText", root="a/open", query="hello") == {"matches": [], "truncated": True}


async def test_a_recursive_list_goes_down_but_not_through_links(tree: FileCalls) -> None:
    assert await names(tree, path="src", recursive=True) == [
        "data.bin",
        "deep",
        "deep/er",
        "deep/er/util.py",
        "main.py",
    ]
    assert await names(tree, path="src", recursive=True, maxDepth=2) == ["data.bin", "deep", "deep/er", "main.py"]
    assert not any(name.startswith("away/") for name in await names(tree, path=".", recursive=True))


async def test_a_long_list_is_cut(tree: FileCalls) -> None:
    listed = await tree("listDir", path=".", maxEntries=2)
    assert [entry["name"] for entry in listed["entries"]] == ["README.md", "away"]
    assert listed["truncated"]
    assert tree.context.truncated
    assert not (await tree("listDir", path=".", maxEntries=5))["truncated"]


async def test_a_folder_that_cannot_be_listed_is_reported(tree: FileCalls) -> None:
    for tool, argument in (("listDir", "path"), ("findFiles", "path"), ("searchText", "root")):
        more = {"query": "x"} if tool == "searchText" else {}
        assert await tree.kind(tool, **{argument: "nope"}, **more) is ErrorKind.NOT_FOUND
        assert await tree.kind(tool, **{argument: "README.md"}, **more) is ErrorKind.INVALID_INPUT
        assert await tree.kind(tool, **{argument: "away"}, **more) is ErrorKind.PATH_OUTSIDE_SANDBOX
        assert await tree.kind(tool, **{argument: "/etc"}, **more) is ErrorKind.PATH_OUTSIDE_SANDBOX


async def test_names_that_are_no_text_are_shown_and_cannot_break_the_result(calls: FileCalls) -> None:
    calls.put("ok", "needle")
    calls.put(os.fsdecode(b"bad\xff.txt"), "needle")
    (calls.root / os.fsdecode(b"dir\xff")).mkdir()
    calls.put("line\nbreak.txt", "needle")
    assert await names(calls, path=".", recursive=True) == ["bad\ufffd.txt", "dir\ufffd", "line\nbreak.txt", "ok"]
    assert (await calls("searchText", root=".", query="needle", glob="*"))["matches"] == [
        {"file": "ok", "line": 1, "excerpt": "needle"}
    ]


async def found(calls: FileCalls, **args: object) -> list[str]:
    return [match["path"] for match in (await calls("findFiles", **args))["matches"]]


async def test_files_are_found_by_name(tree: FileCalls) -> None:
    assert await found(tree, path=".", pattern="*.py") == ["src/deep/er/util.py", "src/main.py"]
    assert await found(tree, path="src", pattern="*.py") == ["src/deep/er/util.py", "src/main.py"]
    assert await found(tree, path="src", pattern="*.py", maxDepth=1) == ["src/main.py"]
    assert await found(tree, path=".", pattern="src/*.py") == ["src/main.py"]
    assert await found(tree, path=".", type="dir") == ["logs", "src", "src/deep", "src/deep/er"]
    assert await found(tree, path=".", pattern=".*", type="file") == [".env"]
    assert await found(tree, path=".", pattern=".hidden/*") == [".hidden/secret.txt"]
    limited = await tree("findFiles", path=".", limit=1)
    assert (len(limited["matches"]), limited["truncated"]) == (1, True)


async def test_lines_are_found_with_their_place(tree: FileCalls) -> None:
    result = await tree("searchText", root=".", query="hello")
    assert result == {
        "matches": [
            {"file": "README.md", "line": 2, "excerpt": "hello world"},
            {"file": "src/main.py", "line": 4, "excerpt": "    print('hello')"},
        ],
        "truncated": False,
    }
    assert tree.context.evidence[0].summary == "2 matches in 4 files"


async def test_a_query_is_literal_unless_regex_is_true(tree: FileCalls) -> None:
    tree.put("a.txt", "a.b\naxb\n")
    assert [m["line"] for m in (await tree("searchText", root=".", query="a.b", glob="a.txt"))["matches"]] == [1]
    both = await tree("searchText", root=".", query="a.b", glob="a.txt", regex=True)
    assert [m["line"] for m in both["matches"]] == [1, 2]
    anchored = await tree("searchText", root="src", query=r"(?i)^\s+return 'HELLO'$", regex=True)
    assert [m["file"] for m in anchored["matches"]] == ["src/deep/er/util.py"]


async def test_searches_are_bounded(tmp_path: Path, tree: FileCalls) -> None:
    cut = await tree("searchText", root=".", query="line", maxMatches=3)
    assert ([m["line"] for m in cut["matches"]], cut["truncated"]) == ([1, 2, 3], True)
    assert (await tree("searchText", root=".", query="nothing", maxFiles=1))["truncated"]
    small = FileCalls(tree.root, OPENINGS["openat2"], Sandbox(max_search_files=1))
    assert (await small("searchText", root=".", query="def"))["truncated"]
    short = FileCalls(tree.root, OPENINGS["openat2"], Sandbox(max_read_bytes=5))
    result = await short("searchText", root="logs", query="50 line")
    assert result == {"matches": [], "truncated": True}


@pytest.mark.parametrize(
    "query", ["(a", "a(?=b)", r"(a)\1", "((((a{100}){100}){100}){100})", "[z-a]", "((a?b?){30}){30}c"]
)
async def test_expressions_that_re2_refuses_are_reported(tree: FileCalls, query: str) -> None:
    assert await tree.kind("searchText", root=".", query=query, regex=True) is ErrorKind.INVALID_INPUT


async def test_a_multi_line_query_and_a_broken_glob_are_refused(tree: FileCalls) -> None:
    assert await tree.kind("searchText", root=".", query="a\nb") is ErrorKind.INVALID_INPUT
    assert await tree.kind("searchText", root=".", query="a", glob="{a,b") is ErrorKind.INVALID_INPUT
    assert await tree.kind("findFiles", path=".", pattern="[z-a]") is ErrorKind.INVALID_INPUT


def lines_of(query: str, data: bytes, *, regex: bool = True) -> list[int]:
    return [line for line, _ in matching_lines(compile_query(query, regex=regex), data)]


def test_matches_stay_within_their_line() -> None:
    assert lines_of("b[^x]*c", b"ab\nc\nbc") == [3]
    assert lines_of(r"b\s*c", b"b\nc\nb c") == [3]
    assert lines_of("^$", b"a\n\nb\n") == [2]
    assert lines_of("x*", b"a\nb\n") == [1, 2]
    assert lines_of("a", b"") == []
    assert lines_of("é", "é\ne\né".encode()) == [1, 3]


def test_lines_are_found_and_counted_across_blocks() -> None:
    data = b"".join(b"%d %s\n" % (number, b"." * (number % 300)) for number in range(1, 5001))
    assert lines_of("^[0-9]*00 ", data) == list(range(100, 5001, 100))
    assert lines_of("^$", b"x" * 65_535 + b"\n\n" + b"y" * 70_000 + b"\n\nz") == [2, 4]


def test_a_line_longer_than_a_block_is_reported_once_and_has_one_end() -> None:
    data = b"a" * 200_000 + b"END\nEND of a\n" + b"b" * 200_000
    assert lines_of("a", data) == [1, 2]
    assert lines_of("^a", data) == [1]
    assert lines_of("a$", data) == [2]
    assert lines_of("END", data) == [1, 2]
    assert lines_of("b$", data) == [3]


async def test_a_slow_search_ends_soon_after_it_is_cancelled(calls: FileCalls) -> None:
    calls.put("f.txt", "ab" * 2_000_000)
    await calls("listDir", path=".")
    before = descriptors()
    search = asyncio.create_task(calls("searchText", root=".", query="((a?b?){20}){20}c", regex=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await search
    assert search.cancelled()
    assert descriptors() == before


HEAVY = "((a?b?){20}){20}c"
"""RE2 takes microseconds for each byte of it: of 40 MB it would take minutes."""


def test_the_work_of_a_search_is_counted_by_blocks_and_what_was_found_before_its_end_is_kept() -> None:
    spent = itertools.count(0.0, 1.0)
    data = b"hit\n" + b"ab" * 500_000
    work = SearchWork(math.inf, spent_s=lambda: next(spent), now_s=lambda: 0.0)
    expression, found = compile_query(f"hit|{HEAVY}", regex=True), list[int]()
    with pytest.raises(WorkDone):
        found.extend(line for line, _ in matching_lines(expression, data, work=work))
    assert found == [1]
    assert next(spent) < 10, "it was not asked before each block, or went on"


def test_a_search_that_is_past_its_time_does_nothing_more() -> None:
    work = SearchWork(5.0, spent_s=lambda: 0.0, now_s=lambda: 5.0)
    with pytest.raises(WorkDone):
        list(matching_lines(compile_query("a", regex=False), b"a\n", work=work))


@pytest.mark.parametrize("files", [1, 30])
async def test_a_heavy_expression_ends_with_what_it_has_found(
    calls: FileCalls, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Before, such a search ran until the call's deadline, and found nothing."""
    monkeypatch.setattr(line_search, "_WORK_S", 0.2)
    for number in range(files):
        calls.put(f"{number:02}.txt", "hit\n" + "ab" * (2_000_000 // files))
    result = await calls("searchText", root=".", query=f"hit|{HEAVY}", regex=True)
    assert result["truncated"]
    assert result["matches"][0] == {"file": "00.txt", "line": 1, "excerpt": "hit"}
    assert "ended early" in calls.context.evidence[0].summary


async def test_a_search_ends_before_the_deadline_of_its_call(calls: FileCalls) -> None:
    calls.put("f.txt", "hit\n" + "ab" * 2_000_000)
    calls.left_s = 0.0
    result = await calls("searchText", root=".", query=HEAVY, regex=True)
    assert result == {"matches": [], "truncated": True}


def test_a_long_line_is_shown_around_the_match() -> None:
    ((_, excerpt),) = matching_lines(
        compile_query("needle", regex=False), b"x" * 5000 + b"needle" + "界".encode() * 5000
    )
    assert excerpt.startswith("…xxx")
    assert excerpt.endswith("界…")
    assert "needle" in excerpt
    assert len(excerpt.encode()) < 260


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/a.py"], ["a.pyc", "a.py/b"]),
        ("**/*.{md,txt}", ["a.md", "x/y/b.txt"], ["a.rst", "md"]),
        ("src/**", ["src/a", "src/a/b"], ["srcs/a", "src"]),
        ("src/*/a?", ["src/x/a1"], ["src/x/y/a1", "src/x/a"]),
        ("[!a-c]x", ["dx"], ["ax", "bx"]),
        ("[]x]", ["]", "x"], ["y"]),
        ("a[.b", ["a[.b"], ["ab"]),
        ("{a,{b,c}}d", ["ad", "bd", "cd"], ["d"]),
        ("a}b,c", ["a}b,c"], ["ab"]),
        ("a+(b)^$|.", ["a+(b)^$|."], ["aab"]),
        ("[\\d]", ["\\", "d"], ["1"]),
        ("**", ["a", "a/b"], []),
        ("日*", ["日本"], ["月"]),
    ],
)
def test_globs_match_as_a_shell_does(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = compile_glob(pattern)
    assert [path for path in yes if not matches(path)] == []
    assert [path for path in no if matches(path)] == []


def test_a_walk_is_bounded_in_depth_and_number(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * 70)).mkdir(parents=True)
    workspace = Workspace(str(tmp_path))
    walk = FolderWalk(workspace, ".", stop=threading.Event())
    assert len(list(walk)) == 64
    assert walk.truncated
    few = FolderWalk(workspace, ".", stop=threading.Event(), max_visited=3)
    assert len(list(few)) == 3
    assert few.truncated
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ToolFailure) as failure:
        list(FolderWalk(workspace, ".", stop=stopped))
    assert failure.value.error.kind is ErrorKind.CANCELLED
    workspace.close()


def test_every_tool_declares_what_it_is() -> None:
    tools = {tool.name: tool for tool in fs_tools()}
    assert sorted(tools) == [
        f"core/fs.{verb}"
        for verb in (
            "copy deletePath editText findFiles listDir move readText searchText sha256 stat writeText".split()
        )
    ]
    for name, tool in tools.items():
        spec = spec_of(tool, source="core")
        reads_only = tool.annotations.read_only
        assert (WRITE_FS in tool.capabilities) != reads_only
        assert (DANGER_DESTRUCTIVE in tool.capabilities) == (name == "core/fs.deletePath")
        properties = spec.input_schema["properties"]
        assert isinstance(properties, dict)
        paths = {"path", "root", "source", "destination"} & set(properties)
        assert {argument.name for argument in tool.guarded} == paths
        assert any(argument.role is ArgumentRole.PATH_WRITE for argument in tool.guarded) != reads_only
        assert spec.input_schema["additionalProperties"] is False
        assert tool.examples
        for example in tool.examples:
            msgspec.convert(example.args, type=tool.In)
