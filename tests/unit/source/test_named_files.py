"""A file that a docstring or comment names exists, so that a reader who follows it arrives."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import toolhub_service

SOURCE = Path(toolhub_service.__file__).parent
REPOSITORY = SOURCE.parents[1]
NAMED = re.compile(r"(?<![\w./<*{-])((?:[\w-]+/)*[a-z_]\w*\.py)\b")
EXAMPLES = frozenset({"scripts/count.py", "scripts/fill.py", "report.py", "kind.py"})
"""Callers' own files, and the one that each adapter's folder has."""


def texts(file: Path) -> Iterator[str]:
    """Docstrings, texts under attributes, and comments."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def exists(named: str, file: Path) -> bool:
    roots = [*file.parents[: len(file.relative_to(SOURCE).parts)], REPOSITORY]
    return any((root / named).exists() for root in roots)


def test_files_that_the_source_names_exist() -> None:
    missing = [
        f"{file.relative_to(SOURCE)} names {named}"
        for file in sorted(SOURCE.rglob("*.py"))
        for text in texts(file)
        for named in NAMED.findall(text)
        if named not in EXAMPLES and not exists(named, file)
    ]
    assert missing == []
