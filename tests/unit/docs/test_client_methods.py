"""docs/clients.md lists every method of the three clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolhub_client import Hub

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "clients"


def listed() -> Iterator[list[str]]:
    """The names in the columns Python, Go and TypeScript of the table of methods."""
    section = (ROOT / "docs/clients.md").read_text().partition("## Methods")[2].partition("## Other")[0]
    for row in re.findall(r"^\| (?!what \||-)(.+) \|$", section, re.MULTILINE):
        yield [cell.strip("` ").partition("(")[0].partition("<")[0] for cell in row.split(" | ")[1:4]]


def of_python() -> set[str]:
    return {name for name, value in vars(Hub).items() if callable(value) and not name.startswith("_")} | {
        "export_stubs"
    }


def of_go() -> set[str]:
    sources = "".join(path.read_text() for path in sorted((CLIENTS / "go/toolhub").glob("*.go")))
    return set(re.findall(r"^func \(hub \*Hub\) ([A-Z]\w+)\(", sources, re.MULTILINE)) - {"Close", "Address"}


def of_typescript() -> set[str]:
    source = (CLIENTS / "ts/src/hub.ts").read_text().partition("export class Hub")[2].partition("\n}\n")[0]
    return set(re.findall(r"^  (?:async )?\*?(\w+)(?:<[^(]*>)?\(", source, re.MULTILINE)) - {
        "constructor",
        "keyOf",
        "request",
    }


@pytest.mark.parametrize(("column", "names"), [(0, of_python()), (1, of_go()), (2, of_typescript())])
def test_page_of_clients_lists_each_method_and_no_other(column: int, names: set[str]) -> None:
    found = {row[column] for row in listed()} - {"–"}
    assert found == names
