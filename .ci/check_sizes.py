"""Fails where source is not in the shape that CONTRIBUTING describes; each rule below says what to do instead.

The limits are not aims: a file is one subject, usually of 150 to 400 lines, and nothing is squeezed to fit.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("service", "clients/python", "examples", ".ci")
"""Source; tests are told in one piece and may be longer."""
FILE_LINES = 600
FUNCTION_LINES = 60
FILES_OF_A_FOLDER = 22
COMMENT_LINES = 2
"""Of a comment that stands by itself: a longer one introduces a second subject, which has a file of its own."""
POSITIONAL_ARGUMENTS = 6
"""Of a call, less literal texts, which speak for themselves: the words of a command, for one."""


def find_sources(root: Path) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if not {"node_modules", ".venv"} & set(path.relative_to(root).parts)
    ]


def check_length(name: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines, at most {FILE_LINES}: give its second subject a file"


def check_functions(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"


def check_comment_blocks(name: str, text: str) -> Iterator[str]:
    """A comment at the margin between two empty lines belongs to no statement: it is the heading of a section."""
    numbered = list(enumerate(text.splitlines(), 1))
    groups = [(kind, list(lines)) for kind, lines in groupby(numbered, key=lambda line: kind_of_line(line[1]))]
    for before, (kind, lines), after in zip(groups, groups[1:], [*groups[2:], ("empty", [])], strict=False):
        if kind == "comment" and len(lines) > COMMENT_LINES and before[0] == after[0] == "empty":
            yield (
                f"{name}:{lines[0][0]}: a comment of {len(lines)} lines heads a section: "
                "give the section a file, whose docstring it is, or attach it to a statement"
            )


def kind_of_line(line: str) -> str:
    return "empty" if not line.strip() else "comment" if line.startswith("#") else "code"


def check_arguments(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (count := sum(not is_text(arg) for arg in node.args)) > POSITIONAL_ARGUMENTS:
            called = re.sub(r"\s+", " ", ast.unparse(node.func))
            yield (
                f"{name}:{node.lineno}: {called} is called with {count} positional arguments, "
                f"at most {POSITIONAL_ARGUMENTS}: write them as keywords"
            )


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def check_folders(names: Iterable[Path]) -> Iterator[str]:
    for folder, count in sorted(Counter(name.parent for name in names).items()):
        if count > FILES_OF_A_FOLDER:
            yield f"{folder}: {count} files, at most {FILES_OF_A_FOLDER}: give one of its subjects a folder"


def check_tree(root: Path) -> Iterator[str]:
    """Yield a line for everything that is out of shape."""
    paths = find_sources(root)
    for path in paths:
        name, text = str(path.relative_to(root)), path.read_text()
        tree = ast.parse(text)
        yield from check_length(name, text)
        yield from check_functions(name, tree)
        yield from check_comment_blocks(name, text)
        yield from check_arguments(name, tree)
    yield from check_folders(path.relative_to(root) for path in paths)


def main() -> int:
    found = list(check_tree(ROOT))
    print("\n".join(found) or "files, folders, functions, comments and calls are in shape")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
