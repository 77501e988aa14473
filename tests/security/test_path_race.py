"""The race that a check before an open loses: another process swaps a folder with a link while the tools run in it.

`renameat2(RENAME_EXCHANGE)` makes `here/d` by turns a folder of the workspace and a link to a folder outside that holds
files of the same names. A realpath-and-prefix check lets about one open in twenty through (CVE-2025-53109).
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.fakes.file_calls import OPENINGS, FileCalls, content_of, descriptors
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure

RACE_S = 3.2
RACE_AT_MOST_S = 60.0
SWAPS_AT_LEAST = 100
CANARY = "CANARY-OF-THE-OUTSIDE"
CANARY_SHA256 = hashlib.sha256(CANARY.encode()).hexdigest()
SWAPPER = """
import ctypes, signal, sys
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("ready", flush=True)
one, other, swaps = sys.argv[1].encode(), sys.argv[2].encode(), 0
while not stopped:
    swaps += renameat2(-100, one, -100, other, 2) == 0
print(swaps, flush=True)
"""
LOST = {
    ErrorKind.PATH_OUTSIDE_SANDBOX,
    ErrorKind.NOT_FOUND,
    ErrorKind.ALREADY_EXISTS,
    ErrorKind.INVALID_INPUT,
    ErrorKind.IO_ERROR,
}


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[list[int]]:
    """Swap two names until the body ends; then the list holds how often."""
    swaps: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(one), str(other)], stdout=subprocess.PIPE, text=True
    ) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == "ready\n"
        try:
            yield swaps
        finally:
            swapper.terminate()
            swaps.append(int(swapper.stdout.readline()))


def turns(n: int) -> list[tuple[str, dict[str, object]]]:
    """Every tool, with each of its path arguments, on names that exist on both sides."""
    return [
        ("readText", {"path": "here/d/file.txt"}),
        ("sha256", {"path": "here/d/file.txt"}),
        ("stat", {"path": "here/d/file.txt"}),
        ("listDir", {"path": "here/d"}),
        ("listDir", {"path": "here", "recursive": True}),
        ("findFiles", {"path": "here/d", "limit": 100}),
        ("searchText", {"root": "here/d", "query": "CANARY"}),
        ("searchText", {"root": "here", "query": "CANARY"}),
        ("writeText", {"path": f"here/d/new-{n}.txt", "text": "mine"}),
        ("writeText", {"path": "here/d/kept.txt", "text": "mine", "overwrite": True}),
        ("writeText", {"path": f"here/d/folder-{n}/deep/new.txt", "text": "mine"}),
        ("editText", {"path": "here/d/kept.txt", "oldText": "mine", "newText": "mine"}),
        ("copy", {"source": "here/d/file.txt", "destination": f"copies/{n}"}),
        ("copy", {"source": "own.txt", "destination": f"here/d/copied-{n}"}),
        ("copy", {"source": "here/d/file.txt", "destination": "here/d/kept.txt", "overwrite": True}),
        ("move", {"source": "here/d/file.txt", "destination": "here/d/moved.txt"}),
        ("move", {"source": "here/d/moved.txt", "destination": "here/d/file.txt"}),
        ("move", {"source": "here/d/victim.txt", "destination": f"copies/moved-{n}"}),
        ("writeText", {"path": "here/d/victim.txt", "text": "mine"}),
        ("writeText", {"path": "here/d/tree/a/b.txt", "text": "mine"}),
        ("deletePath", {"path": "here/d/tree", "recursive": True, "confirm": True}),
        ("deletePath", {"path": "here/d/victim.txt", "confirm": True}),
        ("deletePath", {"path": f"here/d/new-{n}.txt", "confirm": True}),
        ("deletePath", {"path": f"here/d/folder-{n}", "recursive": True, "confirm": True}),
        ("deletePath", {"path": f"here/d/copied-{n}", "confirm": True}),
    ]


def lay_both_sides(calls: FileCalls, outside: Path) -> None:
    for name in ("file.txt", "kept.txt", "victim.txt", "tree/a/b.txt", "only-outside.txt"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(CANARY)
        if name != "only-outside.txt":
            calls.put(f"here/d/{name}", "mine")
    calls.put("own.txt", "mine")
    (calls.root / "here" / "l").symlink_to(outside)


async def outcome(calls: FileCalls, tool: str, args: dict[str, object]) -> str:
    result, kind = None, None
    try:
        result = await calls(tool, **args)
    except ToolFailure as failure:
        kind = failure.error.kind
    if kind is not None:
        assert kind in LOST, (tool, args)
        return kind.value
    exposed = msgspec.json.encode([result, [(e.sha256, e.summary) for e in calls.context.evidence]]).decode()
    assert CANARY not in exposed
    assert CANARY_SHA256 not in exposed
    assert "only-outside" not in exposed
    return "ok"


@pytest.mark.promise("fs.no-race")
@pytest.mark.slow
@pytest.mark.parametrize("opening", OPENINGS)
async def test_no_tool_escapes_while_a_folder_is_swapped_with_a_link(opening: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    calls = FileCalls(tmp_path / "work", OPENINGS[opening])
    lay_both_sides(calls, outside)
    before = content_of(outside)
    await asyncio.gather(*(calls("listDir", path=".") for _ in range(8)))
    open_before = descriptors()
    outcomes: Counter[tuple[str, str]] = Counter()
    tools = {tool for tool, _ in turns(0)}
    with swapping(calls.root / "here" / "d", calls.root / "here" / "l") as swaps:
        begun_at_s = time.monotonic()
        n = 0
        # On a starved machine a tool may need more turns until it has met both sides of the swap.
        while (raced_s := time.monotonic() - begun_at_s) < RACE_S or (
            raced_s < RACE_AT_MOST_S and not all(met_both(outcomes, tool) for tool in tools)
        ):
            n += 1
            for tool, args in turns(n):
                outcomes[tool, await outcome(calls, tool, args)] += 1
    assert descriptors() == open_before
    assert swaps[0] > SWAPS_AT_LEAST
    assert content_of(outside) == before
    assert CANARY.encode() not in content_of(calls.root).values()
    assert all(met_both(outcomes, tool) for tool in tools), outcomes
    print(f"{opening}: {swaps[0]} swaps, {outcomes.total()} calls, {sorted(outcomes.items())}")


def met_both(outcomes: Counter[tuple[str, str]], tool: str) -> bool:
    """Whether calls of the tool found the folder and calls found the link."""
    return outcomes[tool, "ok"] > 0 and outcomes[tool, "PATH_OUTSIDE_SANDBOX"] > 0


async def test_the_race_is_real_for_a_check_before_the_open(tmp_path: Path) -> None:
    """The same swapper against realpath, prefix check and open: if this never escaped, the test above would be none."""
    calls = FileCalls(tmp_path / "work", OPENINGS["openat2"])
    lay_both_sides(calls, tmp_path / "outside")
    target = calls.root / "here" / "d" / "file.txt"
    escapes = 0
    with swapping(calls.root / "here" / "d", calls.root / "here" / "l"):
        ends_at_s = time.monotonic() + RACE_AT_MOST_S
        while not escapes and time.monotonic() < ends_at_s:
            try:
                if target.resolve().is_relative_to(calls.root):
                    escapes += target.read_text() == CANARY
            except OSError:
                continue
    assert escapes
