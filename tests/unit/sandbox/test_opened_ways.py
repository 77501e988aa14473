"""Programs below folders that only root enters: shown by mounts, or refused with what an operator does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.ladders import NOBODY, ladder_of, ran
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.sandbox.opened_ways import closed_folders
from toolhub_service.sandbox.request import Level, SandboxRequest

LEVELS = ("landlock", "bubblewrap")
SHOWS = """#!/bin/sh
cd "$(dirname "$0")" && cat beside.txt
cat "$1" && echo read
ls "$2" && echo listed
(: > "$2/planted") && echo planted
exit 0
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root closes folders to the user of scripts: sudo make test"
)


@dataclass(frozen=True, slots=True)
class ClosedTree:
    """A program in a folder that anybody may read, below two that only root enters."""

    closed: Path
    program: Path
    other: Path
    """Beside the tree, for anybody to read."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder below folders that anybody enters, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="ways-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.fixture
def tree(place: Path) -> ClosedTree:
    closed = place / "home"
    inner = closed / "versions"
    shown = inner / "3.11"
    shown.mkdir(parents=True)
    program, other = shown / "run", inner / "other.txt"
    program.write_text(SHOWS)
    (shown / "beside.txt").write_text("beside\n")
    other.write_text("other\n")
    for path, mode in ((program, 0o755), (shown, 0o755), (inner, 0o700), (closed, 0o700)):
        path.chmod(mode)
    return ClosedTree(closed, program, other)


@needs_root
@pytest.mark.parametrize("level", LEVELS)
async def test_a_tree_below_closed_folders_is_shown_and_nothing_beside_it(level: Level, tree: ClosedTree) -> None:
    ladder = await ladder_of(level)
    argv = (str(tree.program), str(tree.other), str(tree.closed))
    finished = await ran(ladder, SandboxRequest(argv, {}, "/", reads=(str(tree.program.parent),)))
    lines = finished.stdout.text(1_000)[0].split()
    assert (finished.exit_code, lines[0]) == (0, "beside"), finished.stderr.text(1_000)
    assert not {"read", "planted"} & set(lines), lines
    assert [path.name for path in tree.closed.iterdir()] == ["versions"]
    assert tree.closed.stat().st_mode & 0o777 == 0o700


@needs_root
@pytest.mark.parametrize("level", LEVELS)
async def test_a_single_file_below_closed_folders_is_shown(level: Level, tree: ClosedTree) -> None:
    finished = await ran(await ladder_of(level), SandboxRequest((str(tree.program), "/none", "/none"), {}, "/"))
    assert finished.exit_code == 0, finished.stderr.text(1_000)


@needs_root
@pytest.mark.parametrize("level", LEVELS)
async def test_a_run_folder_below_closed_folders_is_written_and_the_writing_stays(
    level: Level, tree: ClosedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tree.closed))
    ladder = await ladder_of(level)
    with ladder.run_folder() as folder:
        request = SandboxRequest(("/bin/sh", "-c", "pwd; echo made > made"), {}, folder, writes=(folder,))
        finished = await ran(ladder, request)
        assert finished.stdout.text(1_000)[0].strip() == folder, finished.stderr.text(1_000)
        assert Path(folder, "made").stat().st_uid == ladder.user  # noqa: ASYNC240 - one look


@needs_root
async def test_a_tree_that_is_itself_closed_is_refused_with_its_path_for_operators_alone(tree: ClosedTree) -> None:
    ladder = await ladder_of("landlock")
    tree.program.parent.chmod(0o700)
    with pytest.raises(ToolFailure) as refused:
        async with ladder.confine(SandboxRequest((str(tree.program),), {}, "/", reads=(str(tree.program.parent),))):
            pytest.fail("started")
    assert str(tree.closed) not in refused.value.error.message
    assert str(tree.program.parent) in str(refused.value.__cause__)


NO_MOUNTS = """
import asyncio, sys
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.request import SandboxRequest
async def main():
    ladder = Ladder(user=65534, bubblewrap="")
    for path in ("/bin/true", sys.argv[1]):
        try:
            async with ladder.confine(SandboxRequest((path,), {}, "/")):
                print("started")
        except ToolFailure as failure:
            print(failure.error.message, "|", failure.__cause__)
asyncio.run(main())
"""


@needs_root
def test_a_root_that_may_make_no_mounts_refuses_what_its_user_cannot_reach(tree: ClosedTree) -> None:
    bare = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    told = subprocess.run([*bare, sys.executable, "-c", NO_MOUNTS, tree.program], capture_output=True, check=True)
    reached, refused = told.stdout.decode().splitlines()
    message, _, cause = refused.partition(" | ")
    assert reached == "started"
    assert f"user {NOBODY} cannot reach a path that it needs" in message
    assert str(tree.closed) not in message
    assert str(tree.closed) in cause
    assert "Install bubblewrap" in cause


@needs_root  # a folder is not closed to its owner
def test_the_outermost_closed_folder_above_each_path_is_found_once(place: Path) -> None:
    (place / "open" / "deep").mkdir(parents=True)
    closed = place / "closed"
    (closed / "also").mkdir(parents=True)
    for folder in (closed, closed / "also"):
        folder.chmod(0o700)
    paths = [str(closed / "also" / "a"), str(closed / "b"), str(place / "open" / "deep"), "/usr/bin/env"]
    assert closed_folders(NOBODY, paths) == (str(closed),)
    assert closed_folders(os.geteuid(), paths) == ()
