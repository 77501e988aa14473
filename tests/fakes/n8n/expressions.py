"""The little JavaScript that workflows for tests are written in: expressions, and Code nodes of a few statements.

Not JavaScript in general: literals, objects, arrays, member access, calls of what is given, `+`, `??`, and in code
`return`, `throw new Error(…)` and plain statements. What goes beyond that is a Python stand-in (see nodes.py).

    program    = statement { ";" statement } [ ";" ]
    statement  = "throw" "new" "Error" "(" expression ")" | "return" expression | expression
    expression = sum { "??" sum }          sum = postfix { "+" postfix }
    postfix    = primary { "." name | "?." name | "[" expression "]" | "(" [ expression { "," expression } ] ")" }
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\d+(?:\.\d+)?|[$A-Za-z_][$\w]*|\?\?|\?\.|[^\s])""")
_TEMPLATE = re.compile(r"{{(.*?)}}", re.DOTALL)
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "undefined": None}


class ScriptError(Exception):
    """What the script threw, or what it could not do."""


def stringify(value: Any) -> str:
    """As JSON.stringify does."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def resolved(parameter: Any, names: Mapping[str, Any]) -> Any:
    """A node's parameter: `={{ … }}` is computed, `=text {{ … }}` filled in, everything else is as it stands."""
    if not isinstance(parameter, str) or not parameter.startswith("="):
        return parameter
    text = parameter[1:]
    whole = re.fullmatch(r"\s*{{(.*)}}\s*", text, re.DOTALL)
    if whole and "}}" not in whole[1]:
        return _Script(whole[1], names).expression()
    return _TEMPLATE.sub(lambda found: _text(_Script(found[1], names).expression()), text)


def run_code(code: str, names: Mapping[str, Any]) -> Any:
    """What a Code node returns.

    Raises:
        ScriptError: it threw.
    """
    return _Script(code, names).program()


class _Script:
    """Reads and computes in one go; there are no branches, so nothing has to be kept."""

    def __init__(self, text: str, names: Mapping[str, Any]) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._names = names

    def program(self) -> Any:
        while self._peek():
            if self._took("return"):
                return self.expression()
            if self._took("throw"):
                self._expect("new", "Error")
                raise ScriptError(_text(self._arguments()[0]))
            self.expression()
            self._took(";")
        return None

    def expression(self) -> Any:
        value = self._sum()
        while self._took("??"):
            other = self._sum()
            value = other if value is None else value
        return value

    def _sum(self) -> Any:
        value = self._postfix()
        while self._took("+"):
            other = self._postfix()
            value = _text(value) + _text(other) if isinstance(value, str) or isinstance(other, str) else value + other
        return value

    def _postfix(self) -> Any:
        value = self._primary()
        while True:
            if self._took("?."):
                name = self._next()
                value = None if value is None else _member(value, name)
            elif self._took("."):
                value = _member(value, self._next())
            elif self._took("["):
                value = _member(value, self.expression())
                self._expect("]")
            elif self._peek() == "(":
                value = _called(value, self._arguments())
            else:
                return value

    def _primary(self) -> Any:
        token = self._next()
        if token[0] in "\"'":
            return token[1:-1].encode().decode("unicode_escape")
        if token[0].isdigit():
            return float(token) if "." in token else int(token)
        if token == "{":
            return self._object()
        if token == "[":
            return self._until("]")
        if token == "(":
            value = self.expression()
            self._expect(")")
            return value
        if token in _WORDS:
            return _WORDS[token]
        if token not in self._names:
            raise ScriptError(f"{token} is not defined")
        return self._names[token]

    def _object(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while not self._took("}"):
            key = self._next().strip("\"'")
            self._expect(":")
            made[key] = self.expression()
            self._took(",")
        return made

    def _arguments(self) -> list[Any]:
        self._expect("(")
        return self._until(")")

    def _until(self, end: str) -> list[Any]:
        values = []
        while not self._took(end):
            values.append(self.expression())
            self._took(",")
        return values

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise ScriptError("Unexpected end of input")
        self._at += 1
        return token

    def _took(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self._took(token):
                raise ScriptError(f"Unexpected token '{self._peek()}'")


def _member(value: Any, key: Any) -> Any:
    if value is None:
        raise ScriptError(f"Cannot read properties of undefined (reading '{key}')")
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list | str):
        return len(value) if key == "length" else value[key] if isinstance(key, int) and key < len(value) else None
    return None


def _called(value: Any, arguments: list[Any]) -> Any:
    if not callable(value):
        raise ScriptError("that is not a function")
    call: Callable[..., Any] = value
    return call(*arguments)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else stringify(value)
