"""Renders Mustache over JSON values, bounded in work, output and depth.

Python's Mustache libraries read partials from disk, dereference attributes (`{{o.__class__}}`) and do not bound their
work: a thousand-fold section in a thousand-fold section is a denial of service of 40 bytes. Here a name is only looked
up in a JSON object, partials come only from the given mapping, and each node costs a step. Falsy values are false,
null, 0, "" and []; an object or array as a variable is serialized as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.tools.json_weight import weigh
from toolhub_service.tools.mustache_parser import Node, Partial, Section, Variable, parse
from toolhub_service.tools.step_budget import AT_ONCE_STEPS, StepBudget

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
            indented = _indent_lines(source, partial.indent)
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


def _indent_lines(source: str, indent: str) -> str:
    if not indent:
        return source
    return "\n".join(indent + line if line else line for line in source.split("\n"))
