"""How settings and sources are read where their author wrote no quotes: dates and times stay text, as written.

YAML 1.1 makes `2025-11-25` a date, `12:30` the number 750 (base 60) and `=` a tag of its own; neither file has
a place for any of them, but versions, names and values of headers look like that. What YAML reads as a number, a truth
value or nothing where text belongs stays an error, because `0755` or `no` could be meant either way: `quotes_advice`
says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import yaml

_LEFT_AS_TEXT: Final = frozenset({"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"})
_BASE_60: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_PLAIN_TEXT: Final = "tag:yaml.org,2002:str"
_EXPECTED: Final = re.compile(r"Expected `([^`]*\bstr\b[^`]*)`, got `(bool|int|float|null)`")
_READ_AS: Final = {
    "bool": "true or false (so it does yes, no, on and off)",
    "int": "a number",
    "float": "a number",
    "null": "nothing",
}


class AsWrittenLoader(yaml.SafeLoader):
    """A `yaml.SafeLoader` that leaves dates and times as text."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        tag = cast(Callable[..., Any], super().resolve)(kind, value, implicit)
        is_plain = kind is yaml.ScalarNode and implicit[0]
        return _PLAIN_TEXT if is_plain and (tag in _LEFT_AS_TEXT or _BASE_60.fullmatch(value)) else tag


def load_as_written(text: str) -> Any:
    """Return the document. Raises yaml.YAMLError, RecursionError."""
    return yaml.load(text, AsWrittenLoader)  # noqa: S506 - a SafeLoader


def quotes_advice(problem: str) -> str:
    """Return msgspec's message, with what to do where YAML made something else of a text without quotes."""
    found = _EXPECTED.match(problem)
    return f"{problem}: put the value in quotes, YAML reads it as {_READ_AS[found[2]]}" if found else problem
