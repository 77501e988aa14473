"""The functions of `stubs.py` as TypeScript declarations (`.d.ts`), for programs that run elsewhere.

A module is a namespace, a function takes one object. Names are those of the Python stubs (`stubs.py`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export.schema_types import (
    UNKNOWN,
    Array,
    Literals,
    Member,
    Object,
    Primitive,
    Record,
    Reference,
    SchemaTypes,
    Type,
    Union,
    Unknown,
    types_of,
)
from toolhub_service.registry.export.stubs import (
    FunctionName,
    capital,
    is_name,
    printable,
    python_function,
    python_stubs,
)

_HEAD: Final = """// Functions of a program; each failing tool rejects with a ToolError.
interface ToolError {
  tool: string; callId: string; kind: string; message: string; retryable: boolean; details: Record<string, unknown>;
}
declare function call(tool: string, args?: Record<string, unknown>): Promise<unknown>;
"""


def typescript_stubs(specs: Iterable[ToolSpec], names: Mapping[str, FunctionName]) -> str:
    """Return all namespaces in one text."""
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for spec in sorted(specs, key=lambda spec: spec.name):
        name = names[spec.name]
        functions[name.module].append(typescript_function(spec, name.function))
    modules = (f"\ndeclare namespace {module} {{\n{''.join(texts)}}}\n" for module, texts in sorted(functions.items()))
    return _HEAD + "".join(modules)


@lru_cache(maxsize=2_048)
def typescript_function(spec: ToolSpec, function: str) -> str:
    """Return one declaration with the types that it needs, within its namespace."""
    return _Declaration(spec, function).text()


class _Declaration:
    def __init__(self, spec: ToolSpec, function: str) -> None:
        self._spec = spec
        self._function = function
        self._prefix = capital(function)
        self._aliases: dict[str, str] = {}

    def text(self) -> str:
        takes, gives = types_of(self._spec.input_schema), types_of(self._spec.output_schema)
        root = takes.root
        if isinstance(root, Reference):
            root = takes.definitions.get(root.name, UNKNOWN)
        needs_none = isinstance(root, Object) and not any(member.is_required for member in root.members.values())
        args = self._expression(takes.root, takes, "In")
        returned = self._expression(gives.root, gives, "Out")
        aliases = "".join(f"  type {name} = {text};\n" for name, text in self._aliases.items())
        mark = "?" if needs_none or not isinstance(root, Object) else ""
        declared = f"  function {self._function}(args{mark}: {args}): Promise<{returned}>;\n"
        return f"{aliases}{_comment(self._spec.description, '  ')}{declared}"

    def _expression(self, of: Type, within: SchemaTypes, side: str) -> str:
        match of:
            case Primitive():
                return "number" if of.of == "integer" else of.of
            case Literals():
                return " | ".join(map(json.dumps, of.values))
            case Array():
                return f"Array<{self._expression(of.item, within, side)}>"
            case Record():
                return f"Record<string, {self._expression(of.value, within, side)}>"
            case Union():
                return " | ".join(dict.fromkeys(self._expression(each, within, side) for each in of.options))
            case Reference():
                return self._write_reference(of, within, side)
            case Object():
                return self._object(of, within, side)
            case Unknown():
                return "unknown"

    def _write_reference(self, of: Reference, within: SchemaTypes, side: str) -> str:
        target = within.definitions.get(of.name, UNKNOWN)
        # Only an object may refer to itself: another type could consist of nothing but itself.
        if not isinstance(target, Object):
            return self._expression(target, within, side) if isinstance(target, Primitive | Literals) else "unknown"
        order = list(within.definitions).index(of.name)
        name = f"{self._prefix}{side}{order}"
        if name not in self._aliases:
            # Reserved first, as the type may refer to itself.
            self._aliases[name] = ""
            self._aliases[name] = self._object(target, within, side)
        return name

    def _object(self, of: Object, within: SchemaTypes, side: str) -> str:
        members = [self._member(name, member, within, side) for name, member in of.members.items()]
        if of.is_open:
            members.append("[more: string]: unknown;")
        return "{ " + " ".join(members) + " }"

    def _member(self, name: str, member: Member, within: SchemaTypes, side: str) -> str:
        comment = f"{_inline(member.description)} " if member.description else ""
        key = name if is_name(name) else json.dumps(name)
        return f"{comment}{key}{'' if member.is_required else '?'}: {self._expression(member.type, within, side)};"


def _comment(text: str, indent: str) -> str:
    lines = _within_comment(text.strip()).split("\n")
    return f"{indent}/** " + f"\n{indent} * ".join(lines) + " */\n"


def _inline(text: str) -> str:
    return "/** " + " ".join(_within_comment(text).split()) + " */"


def _within_comment(text: str) -> str:
    # A description must not end its comment and continue as code.
    return printable(text).replace("*/", "*\\/")


class StubFormat(NamedTuple):
    """A language of stubs."""

    name: str
    function: Callable[[ToolSpec, str], str]
    """Renders one function under its name."""
    whole: Callable[[Sequence[ToolSpec], Mapping[str, FunctionName]], str]


PYTHON: Final = StubFormat("python", python_function, python_stubs)
TYPESCRIPT: Final = StubFormat("typescript", typescript_function, typescript_stubs)
