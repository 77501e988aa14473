"""Public traversal lists against every path argument of every file tool: nothing outside is read or written."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from tests.corpora import load_lines, sample
from tests.fakes.file_calls import OPENINGS, FileCalls, content_of, descriptors
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.guards.paths import check_path

LISTS = [
    "fuzzdb_NullByteRepresentations",
    "fuzzdb_invalid-filenames-linux",
    "fuzzdb_traversals-8-deep-exotic-encoding",
    "patt_JHADDIX_LFI",
    "patt_LFI-FD-check",
    "patt_directory_traversal",
    "patt_nullbyte",
]
CANARY = "CANARY-OF-THE-OUTSIDE"
LEXICAL = {ErrorKind.PATH_OUTSIDE_SANDBOX, ErrorKind.INVALID_INPUT}
TYPED = LEXICAL | {ErrorKind.NOT_FOUND, ErrorKind.ALREADY_EXISTS}
READS: list[tuple[str, dict[str, object]]] = [
    ("readText", {"path": "{}"}),
    ("sha256", {"path": "{}"}),
    ("stat", {"path": "{}"}),
    ("listDir", {"path": "{}"}),
    ("findFiles", {"path": "{}"}),
    ("searchText", {"root": "{}", "query": CANARY, "glob": "*"}),
    ("copy", {"source": "{}", "destination": "taken/copy", "overwrite": True}),
]
WRITES: list[tuple[str, dict[str, object]]] = [
    ("writeText", {"path": "{}", "text": "written"}),
    ("editText", {"path": "{}", "oldText": "written", "newText": "edited"}),
    ("copy", {"source": "own", "destination": "{}", "overwrite": True}),
    ("move", {"source": "{}", "destination": "taken/moved", "overwrite": True}),
    ("move", {"source": "taken/moved", "destination": "{}"}),
    ("deletePath", {"path": "{}", "confirm": True, "recursive": True}),
]


def attacks(name: str) -> list[str]:
    """Each line as it is, percent-decoded once and twice, with and without a folder before it."""
    found: dict[str, None] = {}
    for line, target in product(load_lines(f"path/{name}.txt.gz"), ("etc/passwd", "canary.txt")):
        raw = line.replace("{FILE}", target)
        for spelling in (raw, unquote(raw), unquote(unquote(raw))):
            found[spelling] = None
            found[spelling.lstrip("/")] = None
            found[f"folder/{spelling}"] = None
    return [path for path in found if path]


def filled(template: dict[str, object], path: str) -> dict[str, object]:
    return {key: path if value == "{}" else value for key, value in template.items()}


@pytest.mark.parametrize("name", LISTS)
def test_an_accepted_path_is_inside(name: str) -> None:
    checked = [check(path) for path in attacks(name)]
    refusals = {answer for answer in checked if isinstance(answer, ErrorKind)}
    accepted = {answer for answer in checked if isinstance(answer, str)}
    assert refusals <= LEXICAL
    assert refusals
    assert accepted
    for path in accepted - {"."}:
        assert not {"", ".", ".."} & set(path.split("/"))
        assert "\0" not in path


def check(path: str) -> str | ErrorKind:
    try:
        return check_path(path)
    except ToolFailure as failure:
        return failure.error.kind


@pytest.mark.promise("fs.never-outside")
@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("name", LISTS)
async def test_no_listed_path_leads_a_tool_outside(name: str, opening: str, tmp_path: Path) -> None:
    outside = tmp_path / "up" / "per"
    calls = FileCalls(outside / "work", OPENINGS[opening])
    for folder in (tmp_path, tmp_path / "up", outside):
        folder.mkdir(exist_ok=True)
        (folder / "canary.txt").write_text(CANARY)
    before = shallow(tmp_path, calls.root)
    await calls("writeText", path="own", text="own")
    open_before = descriptors()
    # The check runs on all of them above; without openat2 each takes three times as long.
    for number, path in enumerate(sample(attacks(name), 500 if opening == "openat2" else 150)):
        for tool, template in tried(path, number):
            assert CANARY not in await answer(calls, tool, filled(template, path))
        if not (calls.root / "own").exists():
            await calls("writeText", path="own", text="own")
    assert shallow(tmp_path, calls.root) == before
    assert descriptors() == open_before


def tried(path: str, number: int) -> list[tuple[str, dict[str, object]]]:
    """Every way to use a path that the check accepts; of one that it refuses, another reading and another writing
    each time: hundreds of refused paths for every way."""
    if isinstance(check(path), str):
        return READS + WRITES
    return [READS[number % len(READS)], WRITES[number % len(WRITES)]]


async def answer(calls: FileCalls, tool: str, args: dict[str, object]) -> str:
    """The result as JSON; empty for a refusal."""
    kind = None
    try:
        result = msgspec.json.encode(await calls(tool, **args)).decode()
    except ToolFailure as failure:
        kind, result = failure.error.kind, ""
    assert kind is None or kind in TYPED, (tool, args)
    assert "root:x:" not in result
    return result


def shallow(folder: Path, without: Path) -> dict[str, str | bytes | None]:
    return {
        name: content for name, content in content_of(folder).items() if not (folder / name).is_relative_to(without)
    }
