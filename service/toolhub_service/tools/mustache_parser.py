"""Parses a Mustache template (spec 1.x without lambdas and inheritance) into a tree, in linear time.

Every character is read a bounded number of times: the next tag is found with `str.find`, and a tag's line is
inspected only as far back as the previous tag and as far forward as the next non-blank character. Standalone tags
remove their whole line (spec, "Standalone Lines"); a standalone partial keeps its indentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.step_budget import StepBudget

MAX_NESTING = 64

_STANDALONE = frozenset("#^/!>=")
_UNSUPPORTED = frozenset("<$")


class Variable(msgspec.Struct, frozen=True):
    path: tuple[str, ...]
    """Dotted name in parts; empty for the implicit iterator `.`."""
    escaped: bool


@dataclass(frozen=True, slots=True)
class Section:
    path: tuple[str, ...]
    inverted: bool
    children: list[Node] = field(default_factory=list)


class Partial(msgspec.Struct, frozen=True):
    name: str
    indent: str


Node: TypeAlias = "str | Variable | Section | Partial"
"""A string is literal text."""


def parse(template: str, budget: StepBudget) -> list[Node]:
    """Return the template as a tree. Raises ToolFailure INVALID_INPUT with line and column of the error."""
    return _Parser(template, budget).parse()


class _Parser:
    """One pass over one template."""

    def __init__(self, template: str, budget: StepBudget) -> None:
        self._text = template
        self._budget = budget
        self._open, self._close = "{{", "}}"
        self._at = 0
        self._at_line_start = True
        self._nodes: list[Node] = []
        # Open sections: the node, its name, where it opened, and the list that contains it.
        self._sections: list[tuple[Section, str, int, list[Node]]] = []

    def parse(self) -> list[Node]:
        while (start := self._text.find(self._open, self._at)) >= 0:
            self._budget.spend()
            self._tag(start)
        self._literal(len(self._text))
        if self._sections:
            _, name, opened, _ = self._sections[-1]
            self._fail(opened, f"the section {name[:64]!r} is not closed: add {{{{/{name[:64]}}}}}")
        return self._nodes

    def _tag(self, start: int) -> None:
        kind, content, end = self._read_tag(start)
        if kind in _STANDALONE and (line := self._own_line(start, end)) is not None:
            indent = self._text[line[0] : start]
            end = line[1]
            text_end = line[0]
        else:
            indent = ""
            text_end = start
        self._literal(text_end)
        self._at_line_start = self._text[end - 1] == "\n"
        self._at = end
        self._place(kind, content, start, indent)

    def _read_tag(self, start: int) -> tuple[str, str, int]:
        """Return sigil (empty for a plain variable), content and end of the tag that opens at `start`."""
        inside = start + len(self._open)
        sigil = self._text[inside : inside + 1]
        close = {"{": "}", "=": "="}.get(sigil, "") + self._close
        end = self._text.find(close, inside + (1 if sigil in ("{", "=") else 0))
        if end < 0:
            self._fail(start, f"the tag is not closed: add {close!r}")
        if sigil in ("#", "^", "/", "!", ">", "=", "{", "&", "<", "$"):
            return sigil, self._text[inside + 1 : end].strip(), end + len(close)
        return "", self._text[inside:end].strip(), end + len(close)

    def _own_line(self, start: int, end: int) -> tuple[int, int] | None:
        """Return where the tag's line starts and ends (after its line break), if it contains only blanks besides."""
        line_start = self._text.rfind("\n", self._at, start) + 1
        if line_start == 0:
            if not self._at_line_start:
                return None
            line_start = self._at
        after = end
        while self._text[after : after + 1] in (" ", "\t"):
            after += 1
        if self._text[line_start:start].strip(" \t"):
            return None
        if self._text.startswith("\r\n", after):
            return line_start, after + 2
        if after == len(self._text) or self._text[after] == "\n":
            return line_start, min(after + 1, len(self._text))
        return None

    def _literal(self, end: int) -> None:
        if end > self._at:
            self._nodes.append(self._text[self._at : end])

    def _place(self, kind: str, content: str, start: int, indent: str) -> None:
        if kind == "!":
            return
        if kind == "=":
            self._set_delimiters(content, start)
        elif not content:
            self._fail(start, "the tag has no name")
        elif kind in ("#", "^"):
            self._open_section(kind, content, start)
        elif kind == "/":
            self._close_section(content, start)
        elif kind == ">":
            self._nodes.append(Partial(content, indent))
        elif kind in _UNSUPPORTED:
            self._fail(start, f"{kind!r} tags (inheritance) are not supported; use partials")
        else:
            self._nodes.append(Variable(_path(content), escaped=kind == ""))

    def _set_delimiters(self, content: str, start: int) -> None:
        pair = content.split()
        if len(pair) != 2 or "=" in content:
            self._fail(start, "delimiters are set as {{=<% %>=}}: two words without '='")
        self._open, self._close = pair

    def _open_section(self, kind: str, name: str, start: int) -> None:
        if len(self._sections) >= MAX_NESTING:
            self._fail(start, f"sections are nested more than {MAX_NESTING} deep")
        section = Section(_path(name), inverted=kind == "^")
        self._nodes.append(section)
        self._sections.append((section, name, start, self._nodes))
        self._nodes = section.children

    def _close_section(self, name: str, start: int) -> None:
        if not self._sections:
            self._fail(start, f"{{{{/{name[:64]}}}}} closes a section that was never opened")
        _, opened, _, outer = self._sections.pop()
        if opened != name:
            self._fail(start, f"{{{{/{name[:64]}}}}} is found where {{{{/{opened[:64]}}}}} is expected")
        self._nodes = outer

    def _fail(self, at: int, what: str) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The template is not valid Mustache at line {line}, column {column}: {what}.",
            line=line,
            column=column,
        )


def _path(name: str) -> tuple[str, ...]:
    return () if name == "." else tuple(name.split("."))
