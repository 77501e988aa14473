"""Describes errors in a YAML file in plain words and without any of its text: PyYAML quotes the line, which may contain
a password, and names grammar tokens that authors of a file do not know."""

from __future__ import annotations

import re
from typing import Final

import yaml

_TOKENS: Final = {
    "<stream end>": "the end of the file",
    "<scalar>": "a value",
    "<block mapping start>": "a key",
    "<block sequence start>": "a list",
    "<block end>": "a line with less indentation",
    "<alias>": "an alias (`*`)",
    "<anchor>": "an anchor (`&`)",
    "<tag>": "a tag (`!`)",
    "<document start>": "`---`",
    "<document end>": "`...`",
    "<directive>": "a directive (`%`)",
}
_PROBLEMS: Final = (
    (r"expected ',' or '(.)', but got '(.+)'", "`,` or {0} is missing before {1}"),
    (r"expected the node content, but found '(.+)'", "a value is missing before {0}"),
    (
        r"expected (?:<block end>|'<document start>'), but found '(.+)'",
        "{0} is not expected here: check the indentation",
    ),
    (r"could not find expected ':'", "a key has no `:` after it"),
    (r"mapping values are not allowed here", "`:` is not allowed here: check the indentation, or quote the value"),
    (r"sequence entries are not allowed here", "`-` is not allowed here: each entry of a list begins a line"),
    (r"found character '\\t' that cannot start any token", "a tab is not allowed here: indent with spaces"),
    (r"found character '(.)' that cannot start any token", "a value cannot begin with {0}: put it in quotes"),
    (r"found unexpected end of stream", "a quote is not closed before the end of the file"),
)
# An alias or a tag; signs such as ',' are shorter.
_QUOTED: Final = re.compile(r"'[^'<]{4,}'")


def yaml_fault(broken: yaml.MarkedYAMLError) -> tuple[str, int, int]:
    """Return (what is wrong, line, column), both from 1, and 0 where PyYAML gives no place."""
    problem = broken.problem or broken.context or "it cannot be read"
    what = _QUOTED.sub("'…'", problem)
    for pattern, words in _PROBLEMS:
        if found := re.fullmatch(pattern, problem):
            what = words.format(*(_TOKENS.get(token, f"`{token}`") for token in found.groups()))
    begun, mark = broken.context_mark, broken.problem_mark or broken.context_mark
    if begun is not None and mark is not None and begun.line != mark.line and " is missing before " in what:
        what += f"; what it belongs to begins in line {begun.line + 1}"
    return (what, mark.line + 1, mark.column + 1) if mark else (what, 0, 0)


def yaml_problem(broken: Exception) -> str:
    """Return one line: what is wrong with a YAML file, and where."""
    if not isinstance(broken, yaml.MarkedYAMLError):
        return "it is not UTF-8" if isinstance(broken, UnicodeDecodeError) else type(broken).__name__
    what, line, column = yaml_fault(broken)
    return f"{what} (line {line}, column {column})" if line else what
