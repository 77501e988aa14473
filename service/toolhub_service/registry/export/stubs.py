"""Tools as functions of a program: their names, and stubs with their parameters and results.

`core/fs.readText` is `core.fs_readText`: the part before the slash is a module, the rest a function. Two tools whose
names collide both end in eight digits of the sha256 of their full names; every tool also has such a long name, so a
stub that was written for more tools fits a program with fewer.

Descriptions and schemas are untrusted: their text cannot leave its string or comment, and no member's name becomes
code.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
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

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]")
_UNPRINTABLE: Final = re.compile(r"[^\S\n ]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HASH_DIGITS: Final = 8

_MODULES_OF_PYTHON: Final = frozenset(
    "asyncio base64 binascii bisect collections copy csv dataclasses datetime decimal functools hashlib itertools json "
    "math os pathlib posixpath random re sys time tomllib typing unicodedata".split()
)
"""Modules that programs may import: no tools may replace them."""
_TYPESCRIPT_WORDS: Final = frozenset(
    "any arguments boolean case catch const debugger default delete do enum eval export extends false function "
    "implements instanceof interface let namespace new null number package private protected public static string "
    "super switch symbol this throw true type typeof undefined unknown var void never object".split()
)
_TAKEN: Final = (
    frozenset(keyword.kwlist)
    | _MODULES_OF_PYTHON
    | _TYPESCRIPT_WORDS
    | frozenset(dir(builtins))
    | {"call", "error_of", "inputs", "Any", "Literal", "TypedDict", "NotRequired"}
)


class FunctionName(NamedTuple):
    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}.{self.function}"


@lru_cache(maxsize=16_384)
def short_name(tool: str) -> FunctionName:
    """Return the name of a tool whose short name is unique."""
    namespace, _, rest = tool.partition("/")
    return FunctionName(_identifier(namespace), _identifier(rest))


def module_name(tool: str) -> str:
    return short_name(tool).module


def long_name(tool: str) -> FunctionName:
    """Return the name that is unique to the tool, whatever other tools there are."""
    short = short_name(tool)
    return FunctionName(short.module, f"{short.function}_{hashlib.sha256(tool.encode()).hexdigest()[:_HASH_DIGITS]}")


def _identifier(text: str) -> str:
    plain = _FOREIGN.sub("_", text)
    if plain[:1].isdigit() or not plain:
        plain = f"_{plain}"
    return f"{plain}_" if plain in _TAKEN else plain


def function_names(tools: Iterable[str]) -> dict[str, FunctionName]:
    """Return the function name in stubs of each tool of a set."""
    names = {tool: short_name(tool) for tool in tools}
    # Tools that would share a short name all get the long one: none has a better claim to it.
    uses = Counter(names.values())
    return {tool: name if uses[name] == 1 else long_name(tool) for tool, name in names.items()}


def tools_by_name(tools: Collection[str], words: Collection[str]) -> dict[FunctionName, str]:
    """Return the tools whose functions are among `words`, by every name of the function."""
    named = {tool: name for tool, name in function_names(tools).items() if name.function in words}
    found = {name: tool for tool, name in named.items()}
    for tool in tools:
        prefix = f"{short_name(tool).function}_"
        if any(word.startswith(prefix) for word in words) and (name := long_name(tool)).function in words:
            found[name] = tool
    return found


def revision_of(specs: Iterable[ToolSpec]) -> str:
    """Return the sha256 (hex) over the definitions that stubs are made of."""
    text = "\n".join(f"{spec.name} {spec.digest}" for spec in sorted(specs, key=lambda spec: spec.name))
    return hashlib.sha256(text.encode()).hexdigest()


# Python.

PYTHON_HEAD: Final = """from typing import Any, Literal, NotRequired, TypedDict
"""
BUILT_IN: Final = '''
class ToolError(TypedDict):
    tool: str
    callId: str
    kind: str
    message: str
    retryable: bool
    details: dict[str, Any]

inputs: dict[str, Any]

async def call(tool: str, args: dict[str, Any] = ..., /) -> Any:
    """Call a tool by its full name, such as "core/fs.readText"."""

def error_of(error: BaseException, /) -> ToolError:
    """What the tool said whose failure this exception is; of another `kind` is empty."""
'''


def python_modules(named: Iterable[tuple[ToolSpec, FunctionName]]) -> dict[str, str]:
    """Return the text of one stub file for each module."""
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for spec, name in sorted(named, key=lambda pair: pair[0].name):
        functions[name.module].append(python_function(spec, name.function))
    return {module: PYTHON_HEAD + "".join(texts) for module, texts in sorted(functions.items())}


def python_stubs(specs: Iterable[ToolSpec], names: Mapping[str, FunctionName]) -> str:
    """Return all modules in one text, each after a comment with its import."""
    modules = python_modules((spec, names[spec.name]) for spec in specs)
    text = [
        "# Functions of a program for core/program.run. A failing tool raises RuntimeError; see error_of.\n",
        PYTHON_HEAD,
        BUILT_IN,
    ]
    text += (f"\n\n# import {module}\n{body.removeprefix(PYTHON_HEAD)}" for module, body in modules.items())
    return "".join(text)


@lru_cache(maxsize=2_048)
def python_function(spec: ToolSpec, function: str) -> str:
    """Return one function with the classes that it needs."""
    return _PythonFunction(spec, function).text()


class _PythonFunction:
    def __init__(self, spec: ToolSpec, function: str) -> None:
        self._spec = spec
        self._function = function
        self._prefix = "".join(part[:1].upper() + part[1:] for part in function.split("_")) or "Tool"
        self._classes: dict[str, str] = {}
        self._named: dict[str, str] = {}
        """Names of classes by their definition."""

    def text(self) -> str:
        takes, gives = types_of(self._spec.input_schema), types_of(self._spec.output_schema)
        parameters = self._parameters(takes)
        # An input and an output class differ, even if their definitions share a name.
        self._named = {}
        returned = self._expression(gives.root, f"{self._prefix}Out", gives, 0)
        lines = [f"async def {self._function}({parameters}) -> {returned}:", self._docstring(takes.root)]
        return "\n" + "".join(f"{text}\n" for text in self._classes.values()) + "\n".join(lines) + "\n"

    def _parameters(self, takes: SchemaTypes) -> str:
        root = takes.root
        if isinstance(root, Reference):
            root = takes.definitions.get(root.name, UNKNOWN)
        if not isinstance(root, Object) or any(not is_name(name) for name in root.members):
            is_empty = not isinstance(root, Object) or not any(member.is_required for member in root.members.values())
            expression = self._expression(root, f"{self._prefix}In", takes, 0)
            return f"args: {expression}{' = ...' if is_empty else ''}, /"
        # Required members first, in reading order.
        ordered = sorted(root.members.items(), key=lambda item: not item[1].is_required)
        texts = [
            f"{name}: {self._expression(member.type, f'{self._prefix}{capital(name)}', takes, 1)}"
            f"{'' if member.is_required else ' = ...'}"
            for name, member in ordered
        ]
        more = ["**more: Any"] if root.is_open and "more" not in root.members else []
        return ", ".join(["*", *texts, *more]) if texts else ", ".join(more)

    def _expression(self, of: Type, hint: str, within: SchemaTypes, depth: int) -> str:
        match of:
            case Primitive():
                return {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}[of.of]
            case Literals():
                return f"Literal[{', '.join(map(_python_literal, of.values))}]"
            case Array():
                return f"list[{self._expression(of.item, f'{hint}Item', within, depth + 1)}]"
            case Record():
                return f"dict[str, {self._expression(of.value, f'{hint}Value', within, depth + 1)}]"
            case Union():
                options = (
                    self._expression(each, f"{hint}{place}", within, depth + 1)
                    for place, each in enumerate(of.options, 1)
                )
                return " | ".join(dict.fromkeys(options))
            case Reference():
                return self._write_reference(of, within)
            case Object():
                return self._typed_dict(of, hint, within)
            case Unknown():
                return "Any"

    def _write_reference(self, of: Reference, within: SchemaTypes) -> str:
        target = within.definitions.get(of.name, UNKNOWN)
        if not isinstance(target, Object):
            # An alias could refer to itself, which stubs for Python 3.11 cannot express.
            return "Any" if isinstance(target, Reference | Union | Array | Record) else self._simple(target)
        if of.name not in self._named:
            name = self._free(f"{self._prefix}{_FOREIGN.sub('', capital(of.name))}")
            self._named[of.name] = name
            self._typed_dict(target, name, within)
        return self._named[of.name]

    def _simple(self, of: Type) -> str:
        return self._expression(of, "", SchemaTypes(UNKNOWN, {}), 0)

    def _typed_dict(self, of: Object, hint: str, within: SchemaTypes) -> str:
        name = hint if hint in self._named.values() else self._free(hint)
        # The name is reserved before its members are written, as they may refer to it.
        self._classes[name] = ""
        members = {
            key: self._member(member, f"{name}{_FOREIGN.sub('', capital(key))}", within)
            for key, member in of.members.items()
        }
        if all(map(is_name, members)):
            body = "".join(f"    {key}: {text}\n" for key, text in members.items()) or "    pass\n"
            self._classes[name] = f"class {name}(TypedDict):\n{body}"
        else:
            body = ", ".join(f"{_python_literal(key)}: {text}" for key, text in members.items())
            self._classes[name] = f'{name} = TypedDict("{name}", {{{body}}})\n'
        return name

    def _member(self, member: Member, hint: str, within: SchemaTypes) -> str:
        text = self._expression(member.type, hint, within, 1)
        return text if member.is_required else f"NotRequired[{text}]"

    def _free(self, name: str) -> str:
        name = name if is_name(name) and name not in _TAKEN else f"{self._prefix}Type"
        free, number = name, 1
        while free in self._classes or free in self._named.values():
            number += 1
            free = f"{name}{number}"
        return free

    def _docstring(self, root: Type) -> str:
        lines = [self._spec.description.strip()]
        if isinstance(root, Object):
            lines += [f"{name}: {member.description}" for name, member in root.members.items() if member.description]
        text = printable("\n".join(lines)).replace("\\", "\\\\").replace('"', '\\"')
        return '    """' + text.replace("\n", "\n    ") + '"""'


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def is_name(text: str) -> bool:
    return bool(_IDENTIFIER.fullmatch(text)) and not keyword.iskeyword(text) and not text.startswith("__")


def _python_literal(value: str | int | bool | None) -> str:
    # No text of a remote tool leaves its literal, or hides in it as an invisible character.
    return ascii(value)


def printable(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)


def words_of(code: str) -> frozenset[str]:
    """Return every identifier in a program, including those within strings and comments."""
    return frozenset(_IDENTIFIER.findall(code))
