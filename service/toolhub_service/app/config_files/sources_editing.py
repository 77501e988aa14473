"""Editing sources.yaml as text, so that everything around a source stays as it was written.

PyYAML reports where each source begins and ends; lines are inserted or removed there, and the result is parsed and
compared with the intent. A file whose layout does not allow this is refused and left unchanged.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from toolhub_service.guards.yaml_faults import yaml_problem
from toolhub_service.guards.yaml_scalars import load_as_written
from toolhub_service.settings.loading import SettingsInvalid

_INDENT = 2
_HEADING = "# Where tools come from besides the hub itself; a running hub follows this file.\n"


class NotEditable(ValueError):
    """The file's layout does not allow a change by a program without losing something."""


def with_sources(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these sources at its end. Raises NotEditable, also for an existing name."""
    before = _data(text)
    for name in entries:
        if name in before:
            raise NotEditable(f"`{name}` stands there already")
    return _check_edit(_put_in(text, entries), {**before, **entries})


def without_source(text: str, name: str) -> str:
    """Return the text without this source and the comment right above it.

    Raises NotEditable, KeyError for an unknown name.
    """
    before = _data(text)
    del before[name]
    block = _block(text)
    if block is None:
        raise NotEditable("`sources` is written in one line; remove it by hand")
    lines = text.splitlines(keepends=True)
    at = block.names.index(name)
    first = block.begins(lines, at)
    last = block.begins(lines, at + 1) if at + 1 < len(block.names) else block.end(lines)
    return _check_edit("".join(lines[:first] + lines[last:]), before)


def as_yaml(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return these sources as they are written below `sources:`."""
    given = {name: dict(entry) for name, entry in entries.items()}
    # A reference to a secret is read as one unit, so no line is broken.
    return str(yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=100_000, allow_unicode=True))


class _Block(msgspec.Struct, frozen=True):
    """A non-empty mapping of sources in block style, line by line."""

    names: list[str]
    starts: list[int]
    """Line of each name."""
    indent: int
    stop: int
    """The line after everything that YAML counts as part of it, including comments and blank lines."""

    def begins(self, lines: list[str], at: int) -> int:
        """Return the first line of a source: that of its name, or of the comment right above it."""
        line = self.starts[at]
        while line and lines[line - 1].startswith(" " * self.indent + "#"):
            line -= 1
        return line

    def end(self, lines: list[str]) -> int:
        """Return the line after the last source and the comments indented like it."""
        line = self.stop
        while line:
            text = lines[line - 1].lstrip()
            if text and not (text.startswith("#") and len(lines[line - 1]) - len(text) < self.indent):
                break
            line -= 1
        return line


def _put_in(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    key, value = _nodes(text)
    if key is None:
        start = text.rstrip() + "\n\n" if text.strip() else _HEADING
        return f"{start}sources:\n{_indent_entries(entries, _INDENT)}"
    block = _block(text)
    if block is not None:
        lines = text.splitlines(keepends=True)
        at = block.end(lines)
        if lines[at - 1] and not lines[at - 1].endswith("\n"):
            lines[at - 1] += "\n"
        return "".join([*lines[:at], _indent_entries(entries, block.indent), *lines[at:]])
    if isinstance(value, yaml.MappingNode) and value.value:
        raise NotEditable("`sources` is written in one line; write each source on lines of its own first")
    head, rest = text[: value.start_mark.index], text[value.end_mark.index :]
    line, newline, after = rest.partition("\n")
    return f"{(head.rstrip(' ') + line).rstrip()}{newline or chr(10)}{_indent_entries(entries, _INDENT)}{after}"


def _indent_entries(entries: Mapping[str, Mapping[str, Any]], indent: int) -> str:
    return textwrap.indent(as_yaml(entries), " " * indent)


def _nodes(text: str) -> tuple[Any, Any]:
    """Return the key `sources` and its value; (None, None) when the text has none."""
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
        document = load_as_written(text) or {}
    except yaml.YAMLError as broken:
        raise SettingsInvalid(f"not YAML: {yaml_problem(broken)}") from None
    return dict(document.get("sources") or {}) if isinstance(document, dict) else {}


def _check_edit(text: str, meant: Mapping[str, Any]) -> str:
    try:
        if _data(text) == dict(meant):
            return text
    except SettingsInvalid:
        pass  # As bad as a text that parses to something else
    raise NotEditable("it is written in a way that cannot be changed without losing something; change it by hand")
