"""What a mutation run changes, and what it leaves alone."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.mutation.__main__ import PACKAGE, known_survivors
from tests.mutation.covering import ROOT, TESTS, WHOLE_HUB, far_tests, near_tests
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


def test_tests_near_a_file_bear_its_name_first() -> None:
    assert near_tests("guards/paths.py")[0] == "tests/unit/guards/test_paths.py"
    assert "tests/unit/policy/test_snapshot.py" in near_tests("policy/table.py")
    for file in ("guards/paths.py", "domain/job.py"):
        assert all((ROOT / test).exists() for test in (*near_tests(file), *far_tests(file)))
        assert not set(near_tests(file)) & set(far_tests(file))


def test_named_tests_of_a_folder_exist() -> None:
    named = {name for names in WHOLE_HUB.values() for name in names}
    assert {name for name in named if not (TESTS / name).exists()} == set()
    assert {folder for folder in WHOLE_HUB if not (PACKAGE / folder).is_dir()} == set()


def test_survivors_are_explained() -> None:
    for key, reason in known_survivors().items():
        assert reason.endswith("."), key
