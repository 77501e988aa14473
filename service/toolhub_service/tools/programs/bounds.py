"""The limits of a program, and the failures of one that exceeds a limit or raises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.domain.excerpts import excerpt

_VIOLATIONS_SHOWN: Final = 10
_EXCERPT_CHARS: Final = 200
_ERROR_CHARS: Final = 4_000
"""Of an exception: the text of a failed tool says what to do, and is whole."""
# Beyond what is kept, output is only counted; a program that prints this much counts as endless.
_PRINT_LIMIT_FACTOR: Final = 64
"""A program is ended when its output exceeds the kept size by this factor."""
_PRINT_MIN_BYTES: Final = 64 * 1024
_LINE_OF_NOTHING: Final = 0
_NO_MEMBER: Final = re.compile(r"Module `(\w{1,64})` has no member `(\w{1,200})`")


class ProgramLimits(msgspec.Struct, frozen=True):
    """Limits of one program; `workers` is for the whole hub."""

    workers: int = 8
    memory_bytes: int = 100_000_000
    cpu_s: float = 30.0
    wall_s: float = 600.0
    """From its start to its end, including its calls."""
    calls_max: int = 50
    code_bytes: int = 64 * 1024
    result_bytes: int = 1024 * 1024
    printed_bytes: int = 64 * 1024


@dataclass(slots=True)
class Printed:
    """A program's output, of which the first bytes are kept."""

    limit_bytes: int
    kept: list[str] = field(default_factory=list)
    total: int = 0
    is_cut: bool = False

    def __call__(self, stream: str, text: str) -> None:
        left = self.limit_bytes - self.total
        self.total += len(text.encode("utf-8", "replace"))
        if left > 0:
            cut = text.encode("utf-8", "replace")[:left].decode("utf-8", "ignore")
            self.kept.append(cut)
        self.is_cut = self.is_cut or self.total > self.limit_bytes
        # Raised within the interpreter's callback, the only way to end a program that prints in a loop.
        if self.is_too_much:
            raise ValueError("the program printed too much")

    @property
    def ends_at_bytes(self) -> int:
        return max(self.limit_bytes * _PRINT_LIMIT_FACTOR, _PRINT_MIN_BYTES)

    @property
    def is_too_much(self) -> bool:
        return self.total > self.ends_at_bytes

    @property
    def text(self) -> str:
        return "".join(self.kept)


def failure_of_exception(
    name: str, text: str, line: int, code: str, printed: Printed, limits: ProgramLimits
) -> ToolFailure:
    """Return the failure for an exception that the program did not catch, or for a limit of the interpreter."""
    written = printed.text
    # Checked first: the callback's exception arrives here under the interpreter's own name.
    if printed.is_too_much:
        message = f"The program printed more than {printed.ends_at_bytes:,} bytes. Print less."
        return refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=printed.limit_bytes, stdout=written)
    if name == "TimeoutError" and "time limit" in text:
        message = f"The program used {limits.cpu_s:g} s of processor time and was ended. Do less."
        at_most_s = limits.cpu_s
        return refuse(
            ErrorKind.TIMEOUT, message, retryable=False, max_runtime_s=at_most_s, stopped=True, stdout=written
        )
    if name == "MemoryError":
        at_most = limits.memory_bytes
        message = f"The program needs more memory than {at_most:,} bytes. Keep less at once."
        return refuse(ErrorKind.EXECUTION_ERROR, message, exception=name, limit_bytes=at_most, stdout=written)
    where = f" in line {line}" if line else ""
    source = _line_of(code, line)
    message = f"The program raised {name}{where}: {excerpt(text, _ERROR_CHARS)}"
    kind = ErrorKind.EXECUTION_ERROR
    return refuse(kind, message, exception=name, line=line, source=source, stdout=written)


def no_syntax(text: str, line: int, column: int) -> ToolFailure:
    message = f"The program cannot be read: {excerpt(text, _EXCERPT_CHARS)} (line {line}). Correct it."
    return refuse(ErrorKind.INVALID_INPUT, message, field="code", line=line, column=column)


def type_failure(diagnostics: str, near: Callable[[str], str]) -> ToolFailure:
    """Return one violation per diagnostic; the message contains the first."""
    try:
        found = [each for each in json.loads(diagnostics) if isinstance(each, dict)]
    except ValueError:
        found = []
    violations = tuple(
        Violation(
            path=f"/code:{_row(each)}",
            keyword=str(each.get("code", "")),
            message=excerpt(str(each.get("message", "")), _EXCERPT_CHARS),
            hint=_suggestion(str(each.get("message", "")), near),
        )
        for each in found[:_VIOLATIONS_SHOWN]
    )
    said = excerpt(str(found[0].get("message", "")), _EXCERPT_CHARS) if found else ""
    first = f"line {_row(found[0])}: {said}" if found else "its types"
    hint = f" {violations[0].hint}" if violations and violations[0].hint else ""
    unfit = f"The program does not fit the tools that it calls, {first}.{hint}"
    message = f"{unfit} `toolhub program stubs` shows what they take."
    line = _row(found[0]) if found else _LINE_OF_NOTHING
    return refuse(ErrorKind.INVALID_INPUT, message, violations=violations, field="code", line=line)


def _suggestion(problem: str, near: Callable[[str], str]) -> str:
    """Return a suggestion for a name that a module of tools lacks."""
    found = _NO_MEMBER.search(problem)
    name = near(f"{found[1]}.{found[2]}") if found else ""
    return f"Did you mean {name}?" if name else ""


def _row(diagnostic: Mapping[str, Any]) -> int:
    where = diagnostic.get("location")
    row = where.get("row") if isinstance(where, dict) else None
    return row if isinstance(row, int) else _LINE_OF_NOTHING


def _line_of(code: str, line: int) -> str:
    lines = code.split("\n")
    return lines[line - 1].strip()[:_EXCERPT_CHARS] if 0 < line <= len(lines) else ""
