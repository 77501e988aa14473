"""Changing sources.yaml as text, so that what people wrote around a source stays as they wrote it.

PyYAML says where each source begins and ends; lines are put in or taken out there, and the outcome is read again and
compared with what was meant. A file that is written in a way that this cannot follow is refused and left alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from toolhub_service.guards.masking import yaml_problem
from toolhub_service.settings.loading import SettingsInvalid

_INDENT = 2
_WIDTH = 100_000
"""No line is broken: a reference to a secret is read as one thing."""
_HEADING = "# Where tools come from besides the hub itself; a running hub follows this file.\n"


class NotEditable(ValueError):
    """The file is written in a way that cannot be changed by a program without losing something."""


def with_sources(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The text with these sources at its end. Raises NotEditable, also for a name that stands there already."""
    before = _data(text)
    for name in entries:
        if name in before:
            raise NotEditable(f"`{name}` stands there already")
    after = _put_in(text, entries)
    return _checked(after, {**before, **entries})


def without_source(text: str, name: str) -> str:
    """The text without this source and the comment right above it. Raises NotEditable, KeyError for an unknown name."""
    before = _data(text)
    del before[name]
    block = _block(text)
    if block is None:
        raise NotEditable("`sources` is written in one line; remove it by hand")
    lines = text.splitlines(keepends=True)
    at = block.names.index(name)
    first = block.begins(lines, at)
    last = block.begins(lines, at + 1) if at + 1 < len(block.names) else block.end(lines)
    return _checked("".join(lines[:first] + lines[last:]), before)


def as_yaml(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """These sources as they stand below `sources:`."""
    shown = yaml.safe_dump(
        {name: dict(entry) for name, entry in entries.items()},
        sort_keys=False,
        default_flow_style=None,
        width=_WIDTH,
        allow_unicode=True,
    )
    return str(shown)


@dataclass(frozen=True, slots=True)
class _Block:
    """A non-empty mapping of sources in block style, line by line."""

    names: list[str]
    starts: list[int]
    """Line of each name."""
    indent: int
    stop: int
    """Line after everything that YAML counts to it, comments and blank lines too."""

    def begins(self, lines: list[str], at: int) -> int:
        """The first line of a source: that of its name, or of the comment right above it."""
        line = self.starts[at]
        while line and lines[line - 1].startswith(" " * self.indent + "#"):
            line -= 1
        return line

    def end(self, lines: list[str]) -> int:
        """The line after the last source and the comments indented like it."""
        line = self.stop
        while line and (not lines[line - 1].strip() or self._is_outside(lines[line - 1])):
            line -= 1
        return line

    def _is_outside(self, line: str) -> bool:
        return line.lstrip().startswith("#") and len(line) - len(line.lstrip()) < self.indent


def _put_in(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    key, value = _nodes(text)
    if key is None:
        start = text.rstrip() + "\n\n" if text.strip() else _HEADING
        return f"{start}sources:\n{_indented(entries, _INDENT)}"
    block = _block(text)
    if block is not None:
        lines = text.splitlines(keepends=True)
        at = block.end(lines)
        if lines[at - 1] and not lines[at - 1].endswith("\n"):
            lines[at - 1] += "\n"
        return "".join([*lines[:at], _indented(entries, block.indent), *lines[at:]])
    if isinstance(value, yaml.MappingNode) and value.value:
        raise NotEditable("`sources` is written in one line; write each source on lines of its own first")
    head, rest = text[: value.start_mark.index], text[value.end_mark.index :]
    line, newline, after = rest.partition("\n")
    return f"{(head.rstrip(' ') + line).rstrip()}{newline or chr(10)}{_indented(entries, _INDENT)}{after}"


def _indented(entries: Mapping[str, Mapping[str, Any]], indent: int) -> str:
    return textwrap.indent(as_yaml(entries), " " * indent)


def _nodes(text: str) -> tuple[Any, Any]:
    """The key `sources` and its value; (None, None) when the text has none."""
    document = yaml.compose(text, yaml.SafeLoader)
    if document is None:
        return None, None
    if not isinstance(document, yaml.MappingNode):
        raise NotEditable("the top level is no mapping")
    found = [(key, value) for key, value in document.value if key.value == "sources"]
    return found[0] if found else (None, None)


def _block(text: str) -> _Block | None:
    _, value = _nodes(text)
    if not isinstance(value, yaml.MappingNode) or not value.value or value.flow_style:
        return None
    keys = [key for key, _ in value.value]
    end = value.end_mark
    return _Block(
        [key.value for key in keys],
        [key.start_mark.line for key in keys],
        keys[0].start_mark.column,
        end.line if end.column == 0 else end.line + 1,
    )


def _data(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as broken:
        raise SettingsInvalid(f"not YAML: {yaml_problem(broken)}") from None
    return dict(document.get("sources") or {}) if isinstance(document, dict) else {}


def _checked(text: str, meant: Mapping[str, Any]) -> str:
    try:
        if _data(text) == dict(meant):
            return text
    except SettingsInvalid:
        pass
    raise NotEditable("it is written in a way that cannot be changed without losing something; change it by hand")
