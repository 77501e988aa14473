"""Fails when a source file has more than 600 lines or a function more than 60.

The wall is not the aim: a file is one subject, usually of 150 to 400 lines, and nothing is squeezed to fit."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("service", "clients/python", "examples", ".ci")
"""Source; tests are told in one piece and may be longer."""
FILE_LINES = 600
FUNCTION_LINES = 60


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def oversized(path: Path) -> Iterator[str]:
    """What is too long in one file, one line each."""
    text, name = path.read_text(), path.relative_to(ROOT)
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines, at most {FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"


def main() -> int:
    found = [line for path in sources() if "node_modules" not in path.parts for line in oversized(path)]
    print("\n".join(found) or "no file and no function is too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
