"""Renders Mustache over JSON values, bounded in work, output and depth.

Python's Mustache libraries read partials from disk, dereference attributes (`{{o.__class__}}`) and do not bound their
work: a thousand-fold section in a thousand-fold section is a denial of service of 40 bytes. Here a name is only looked
up in a JSON object, partials come only from the given mapping, and each node costs a step. Falsy values are false,
null, 0, "" and []; an object or array as a variable is serialized as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.tools.step_budget import AT_ONCE_STEPS, StepBudget, weigh

# Parses a Mustache template (spec 1.x without lambdas and inheritance) into a tree, in linear time.
#
# Every character is read a bounded number of times: the next tag is found with `str.find`, and a tag's line is
# inspected only as far back as the previous tag and as far forward as the next non-blank character. Standalone tags
# remove their whole line (spec, "Standalone Lines"); a standalone partial keeps its indentation.

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
            indent, end, text_end = self._text[line[0] : start], line[1], line[0]
        else:
            indent, text_end = "", start
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


_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})
_ADVICE = "Render a smaller part, or fewer elements."
_CHARS_PER_STEP = 64


class RenderLimits(msgspec.Struct, frozen=True):
    output_chars: int = 1024 * 1024
    steps: int = 200_000
    json_nodes: int = 1_000_000
    """Limit of objects and arrays that are serialized as JSON; the output holds fewer."""
    depth: int = 100
    """Nesting of sections and partials, counted together."""

    @property
    def at_once(self) -> RenderLimits:
        """Return the same limits for rendering on the event loop."""
        return msgspec.structs.replace(
            self, steps=min(self.steps, AT_ONCE_STEPS), json_nodes=min(self.json_nodes, AT_ONCE_STEPS)
        )


def render(template: str, data: JsonValue, partials: Mapping[str, str], limits: RenderLimits) -> str:
    """Return the rendered text. Raises ToolFailure INVALID_INPUT for a syntax error (with its place) or an exceeded
    limit."""
    budget = StepBudget(limits.steps, _ADVICE)
    renderer = _Renderer(partials, limits, budget)
    renderer.nodes(parse(template, budget), [data])
    return "".join(renderer.parts)


class _Renderer:
    """The state of one rendering."""

    def __init__(self, partials: Mapping[str, str], limits: RenderLimits, budget: StepBudget) -> None:
        self.parts: list[str] = []
        self._partials = partials
        self._limits = limits
        self._budget = budget
        self._json_budget = StepBudget(limits.json_nodes, _ADVICE)
        self._chars_left = limits.output_chars
        self._parsed: dict[tuple[str, str], list[Node]] = {}
        self._depth = 0

    def nodes(self, nodes: list[Node], stack: list[JsonValue]) -> None:
        self._depth += 1
        if self._depth > self._limits.depth:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"Sections and partials include one another more than {self._limits.depth} deep: "
                "put a partial that includes itself in a section that ends.",
                max_depth=self._limits.depth,
            )
        for node in nodes:
            self._budget.spend()
            if isinstance(node, str):
                self._write(node)
            elif isinstance(node, Variable):
                self._variable(node, self._look_up(node.path, stack))
            elif isinstance(node, Section):
                self._section(node, stack)
            else:
                self._partial(node, stack)
        self._depth -= 1

    def _variable(self, variable: Variable, value: JsonValue) -> None:
        if isinstance(value, list | dict):
            weigh(value, self._json_budget)
        text = _text_of(value)
        fits = len(text) <= self._chars_left  # escapes only make it longer
        self._write(text.translate(_ESCAPES) if variable.escaped and fits else text)

    def _section(self, section: Section, stack: list[JsonValue]) -> None:
        value = self._look_up(section.path, stack)
        truthy = bool(value) or isinstance(value, dict)
        if section.inverted:
            if not truthy:
                self.nodes(section.children, stack)
            return
        if not truthy:
            return
        for element in value if isinstance(value, list) else (value,):
            self._budget.spend()
            stack.append(element)
            self.nodes(section.children, stack)
            stack.pop()

    def _partial(self, partial: Partial, stack: list[JsonValue]) -> None:
        source = self._partials.get(partial.name)
        if source is None:
            return
        key = (partial.name, partial.indent)
        if key not in self._parsed:
            # Its lines are indented in the source, so that interpolated lines are not.
            indented = _indented(source, partial.indent)
            self._budget.spend(len(indented) // _CHARS_PER_STEP)
            self._parsed[key] = parse(indented, self._budget)
        self.nodes(self._parsed[key], stack)

    def _look_up(self, path: tuple[str, ...], stack: list[JsonValue]) -> JsonValue:
        """Look the first part up anywhere in the stack, innermost first; the rest strictly inside it."""
        if not path:
            return stack[-1]
        for frame in reversed(stack):
            self._budget.spend()
            if isinstance(frame, dict) and path[0] in frame:
                value: JsonValue = frame[path[0]]
                break
        else:
            return None
        for part in path[1:]:
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        return value

    def _write(self, text: str) -> None:
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"The rendered text is longer than {self._limits.output_chars} characters. {_ADVICE}",
                max_chars=self._limits.output_chars,
            )
        self.parts.append(text)


def _text_of(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _indented(source: str, indent: str) -> str:
    if not indent:
        return source
    return "\n".join(indent + line if line else line for line in source.split("\n"))
