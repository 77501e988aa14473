"""What this software promises: promises.yaml as values. A test says which of them it keeps by `pytest.mark.promise`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

TESTS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    """`area.name`."""
    sentence: str
    source: str
    """Where it is made: `docs/page.md#section`, a standard, a weakness class, an issue, a paper."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One test says that it keeps one promise."""

    promise_id: str
    test: str
    """`folder/test_file.py::test_name`."""


def promises() -> dict[str, Promise]:
    """Every promise by its id, in the order of the manifest."""
    data = yaml.safe_load((TESTS / "promises.yaml").read_text(encoding="utf-8"))
    return {id: Promise(id, **fields) for id, fields in data.items()}


def claims() -> Iterator[Claim]:
    """What the tests say, read from their source and never by running them."""
    for file in sorted({*TESTS.rglob("test_*.py"), *TESTS.glob("ports/*_suite.py")}):
        source = file.read_text(encoding="utf-8")
        for node in _tests_of(ast.parse(source if "mark.promise(" in source else "")):
            place = f"{file.relative_to(TESTS)}::{node.name}"
            yield from (Claim(id, place) for mark in node.decorator_list for id in _named(mark))


def _tests_of(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions and classes of a module, and of its classes."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        if isinstance(child, ast.ClassDef):
            yield from _tests_of(child)


def _named(mark: ast.expr) -> list[str]:
    """The ids in `@pytest.mark.promise("id", …)`; what is no literal stands for itself and is therefore unknown."""
    if not isinstance(mark, ast.Call) or ast.unparse(mark.func) != "pytest.mark.promise":
        return []
    return [str(id.value) if isinstance(id, ast.Constant) else ast.unparse(id) for id in mark.args]
