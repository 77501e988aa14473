"""original_names.yaml as values: each name of the older designs, what it is called here, and the tests that hold it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Row:
    """One name of an older design."""

    design: str
    section: str
    name: str
    """As it was written there; its default and bounds stand behind it."""
    here: tuple[str, ...]
    """References of the form `kind words`, which .ci/docs/hub_names.py looks up; empty: there is nothing here yet."""
    tests: tuple[str, ...]
    """`folder/test_file.py::test_name`, also `…::TestClass` or `…::TestClass::test_name`."""
    declared: Mapping[str, Any]
    """`default` and `bounds` that the first reference must have, where the manifest states them."""
    note: str = ""
    """What differs, or why it is not there yet."""


@dataclass(frozen=True, slots=True)
class Design:
    name: str
    about: str
    rows: tuple[Row, ...]


class _Once(yaml.SafeLoader):
    """YAML lets the last of two equal keys win silently; here it is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"{twice} is written twice, line {node.start_mark.line + 1} and after")
        return super().construct_mapping(node, deep)


def designs(manifest: Path = TESTS / "original_names.yaml") -> tuple[Design, ...]:
    """Every older design in the order of the manifest. Raises ValueError for a key without meaning or written twice."""
    data = yaml.load(manifest.read_text(encoding="utf-8"), _Once)
    return tuple(
        Design(name, sections.pop("about"), tuple(_rows(name, sections.pop("sections"), sections)))
        for name, sections in data.items()
    )


def _rows(design: str, sections: Mapping[str, Any], rest: Mapping[str, Any]) -> Iterator[Row]:
    _nothing_left(design, rest)
    for section, section_fields in sections.items():
        tests = section_fields.get("tests", ())
        for name, row in section_fields["rows"].items():
            yield _row(design, section, name, dict(row) if isinstance(row, dict) else {"here": row}, tests)


def _row(design: str, section: str, name: str, fields: dict[str, Any], tests: Any) -> Row:
    here, kept_by = fields.pop("here", ()), fields.pop("tests", tests)
    missing = fields.pop("not_yet", "")
    note = fields.pop("note", "") or missing
    declared: dict[str, Any] = {key: fields.pop(key) for key in ("default", "bounds") if key in fields}
    _nothing_left(f"{design}, {section}, {name}", fields)
    return Row(
        design,
        section,
        name,
        () if missing else _texts(here),
        () if missing else _texts(kept_by),
        declared,
        note,
    )


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _nothing_left(place: str, fields: Mapping[str, Any]) -> None:
    if fields:
        raise ValueError(f"{place}: {', '.join(fields)} means nothing here")


def is_test(id: str) -> bool:
    """Whether there is such a test."""
    path, _, name = id.partition("::")
    return name in _names(path)


@cache
def _names(path: str) -> frozenset[str]:
    """Tests and their classes of a file below tests/: `test_a`, `TestB`, `TestB::test_c`."""
    file = TESTS / path
    return frozenset(_defined(ast.parse(file.read_text(encoding="utf-8")).body)) if file.is_file() else frozenset()


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield within + node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield node.name
            yield from _defined(node.body, f"{node.name}::")
