"""Which tests run the line that a mutant changes, by a run of the unchanged tests under coverage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Final

import coverage

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "service" / "toolhub_service"
MEASURED: Final = ("tests/unit", "tests/ports", "tests/rpc", "tests/security", "tests/upgrade")
"""Those of chaos, benches and command lines run the same code in processes of their own."""
FAR_TESTS: Final = 150
"""Of another folder, at the most, for one mutant: some lines are run by thousands."""


class BrokenTestsError(Exception):
    """Tests fail without any change; the message is what pytest said."""


def measure(map_file: Path) -> None:
    """Write which tests run which line to `map_file`. Raises BrokenTestsError."""
    settings = map_file.with_suffix(".ini")
    settings.write_text(f"[run]\nsource = {PACKAGE}\ndata_file = {map_file}\n")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "--no-header"]
    plugin = ["-p", "tests.mutation.context_plugin", "-n", "0"]
    done = subprocess.run(
        [*command, *plugin, *MEASURED], cwd=ROOT, env=environment(), check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        map_file.unlink(missing_ok=True)
        raise BrokenTestsError(done.stdout[-2_000:])


def environment(package_parent: Path | None = None) -> dict[str, str]:
    """Of a run of tests: a changed copy of the server is found before the installed one."""
    # Bytecode may be written: a run takes longer than the second by which Python detects a changed file.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | ({"PYTHONPATH": str(package_parent)} if package_parent else {})


class CoverageMap:
    """Tests by file and line."""

    def __init__(self, map_file: Path) -> None:
        self._data = coverage.CoverageData(str(map_file))
        self._data.read()
        self._by_file: dict[str, Mapping[int, Sequence[str]]] = {}

    def tests_of(self, file: str, line: int) -> list[str]:
        """The tests that run the line, the nearest first; for a line that runs when it is imported, those that run
        anything of its file. Empty: none does."""
        if file not in self._by_file:
            self._by_file[file] = self._data.contexts_by_lineno(str(PACKAGE / file))
        by_line = self._by_file[file]
        tests = by_line.get(line, ())
        if "" in tests:
            tests = list(dict.fromkeys(chain.from_iterable(by_line.values())))
        return nearest(file, (test for test in tests if test))


def nearest(file: str, tests: Iterable[str]) -> list[str]:
    """All of the folder that mirrors the file's, those that bear its name first, then some of the others: one of each
    test function before a second one of any, because parameters of one function are much alike."""
    folder, stem = f"tests/unit/{Path(file).parent}/", Path(file).stem
    ordered = sorted(tests, key=lambda test: (stem not in test.partition("::")[0], test))
    near = [test for test in ordered if test.startswith(folder)]
    far = _one_of_each(test for test in ordered if not test.startswith(folder))
    return [*near, *islice(far, FAR_TESTS)]


def _one_of_each(tests: Iterable[str]) -> Iterator[str]:
    by_function: dict[str, list[str]] = {}
    for test in tests:
        by_function.setdefault(test.partition("[")[0], []).append(test)
    ordered = sorted(by_function.values(), key=lambda same: not same[0].startswith("tests/unit/"))
    for each in zip_longest(*ordered):
        yield from (test for test in each if test is not None)
