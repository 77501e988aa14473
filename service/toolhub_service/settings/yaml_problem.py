"""What is wrong with a YAML file, without any of its text: PyYAML quotes the line, and a password may stand there."""

from __future__ import annotations

import re
from typing import Final

import yaml

_QUOTED: Final = re.compile(r"'[^'<]{4,}'")
"""An alias or a tag; signs such as ',' and kinds such as '<stream end>' are shorter, or no text of the file."""


def yaml_problem(broken: Exception) -> str:
    """One line: what, and where."""
    if not isinstance(broken, yaml.MarkedYAMLError):
        return "it is not UTF-8" if isinstance(broken, UnicodeDecodeError) else type(broken).__name__
    what = _QUOTED.sub("'…'", ", ".join(part for part in (broken.context, broken.problem) if part))
    mark = broken.problem_mark or broken.context_mark
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what
