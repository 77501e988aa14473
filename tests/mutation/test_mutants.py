"""What a mutation run changes, and what it leaves alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.mutation.__main__ import known_survivors
from tests.mutation.covering import PACKAGE, ROOT, CoverageMap, nearest
from tests.mutation.mutants import mutants_of

CHANGES: Final = {
    "return a < b": ["return None", "(a <= b)"],
    "return a not in b": ["return None", "(a in b)"],
    "x = a and b": ["(a or b)"],
    "x = not a": ["(a)"],
    "x = a + 1": ["(a - 1)", "(2)"],
    "x = 'a' + b": [],
    "x = True": ["(False)"],
    "x = a if b else c": ["(a if not b else c)"],
    "raise ValueError": ["pass"],
    "x += 1": ["pass", "(2)"],
    "stop(a)": ["pass"],
    "await stop(a)": ["pass"],
    "x: Annotated[int, 5] = y": [],
    "'A sentence.'": [],
    "x = f'{a:>{1 + 1}}'": [],
    "return": [],
    "return False": ["(True)"],
}


@pytest.mark.parametrize("statement", CHANGES)
def test_each_change_is_one_and_nothing_else_moves(statement: str) -> None:
    source = f"class A:\n    async def f(self):\n        # a reason: ä\n        {statement}\n"
    mutants = list(mutants_of("a.py", source))
    assert [mutant.source for mutant in mutants] == [
        source.replace(statement, changed) for changed in _whole(statement, CHANGES[statement])
    ]
    assert {(mutant.function, mutant.line) for mutant in mutants} <= {("A.f", 4)}
    for mutant in mutants:
        ast.parse(mutant.source)


def _whole(statement: str, changes: list[str]) -> list[str]:
    """The statement with each change in its place."""
    whole = []
    for change in changes:
        if change in {"pass", "return None"}:
            whole.append(change)
        elif change == "(2)":
            whole.append(statement.replace("1", change))
        else:
            head, equals, _ = statement.rpartition("= ") if " = " in statement else ("return ", "", "")
            whole.append(f"{head}{equals}{change}")
    return whole


def test_code_for_type_checkers_and_of_modules_is_left_alone() -> None:
    assert list(mutants_of("a.py", "LIMIT = 5\nif TYPE_CHECKING:\n    x = 1 < 2\n")) == []


def test_nearest_tests_have_the_name_of_the_file_and_far_ones_are_one_of_each_function_first() -> None:
    tests = [
        "tests/rpc/test_policy.py::test_wire[a]",
        "tests/rpc/test_policy.py::test_wire[b]",
        "tests/rpc/test_served.py::test_served",
        "tests/unit/policy/test_parsing.py::test_parses",
        "tests/unit/policy/test_table.py::test_decides[x]",
        "tests/unit/policy/test_table.py::test_decides[y]",
        "tests/unit/runtime/test_steps.py::test_refused",
    ]
    assert nearest("policy/table.py", tests) == [
        "tests/unit/policy/test_table.py::test_decides[x]",
        "tests/unit/policy/test_table.py::test_decides[y]",
        "tests/unit/policy/test_parsing.py::test_parses",
        "tests/unit/runtime/test_steps.py::test_refused",
        "tests/rpc/test_policy.py::test_wire[a]",
        "tests/rpc/test_served.py::test_served",
        "tests/rpc/test_policy.py::test_wire[b]",
    ]


def test_map_names_the_tests_of_a_line_and_of_what_runs_at_import_those_of_the_file(tmp_path: Path) -> None:
    map_file = tmp_path / "map"
    data = coverage.CoverageData(str(map_file))
    for context, lines in (("", [1, 2]), ("tests/a.py::test_one", [3]), ("tests/b.py::test_two", [3, 4])):
        data.set_context(context)
        data.add_lines({str(PACKAGE / "guards" / "paths.py"): lines})
    data.write()
    tests_of = CoverageMap(map_file).tests_of
    assert tests_of("guards/paths.py", 4) == ["tests/b.py::test_two"]
    assert (
        tests_of("guards/paths.py", 3)
        == tests_of("guards/paths.py", 1)
        == ["tests/a.py::test_one", "tests/b.py::test_two"]
    )
    assert tests_of("guards/paths.py", 5) == tests_of("guards/urls.py", 1) == []


def test_measured_run_notes_each_test_with_what_its_fixtures_run(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text("def made():\n    return 1\n\n\ndef asked():\n    return 2\n")
    (tmp_path / "test_subject.py").write_text(
        "import pytest\nimport subject\n\n@pytest.fixture\ndef one():\n    return subject.made()\n\n"
        "def test_a(one):\n    pass\n\ndef test_b():\n    subject.asked()\n"
    )
    command = [
        "-m",
        "coverage",
        "run",
        "--include=subject.py",
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.mutation.context_plugin",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    data = coverage.CoverageData(str(tmp_path / ".coverage"))
    data.read()
    by_line = data.contexts_by_lineno(str(tmp_path / "subject.py"))
    assert (by_line[2], by_line[6]) == (["test_subject.py::test_a"], ["test_subject.py::test_b"])


def test_survivors_are_explained() -> None:
    for key, reason in known_survivors().items():
        assert reason.endswith("."), key
