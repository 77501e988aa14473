"""What the definitions of all sources share: checks of their schemas, their names in the hub, the operator's overrides.

A remote server may say that its tools are harmless; only the operator's overrides are believed. They are given by glob
over the tools' own names, compiled once; of the globs that match a name the last one counts, whole.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import re2

from toolhub_service.adapters.upstream import one_line, written
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.registry.catalog import NAME_MAX_CHARS, check_name

SCHEMA_MAX_BYTES: Final = 256 * 1024
PROBLEMS_MAX: Final = 50
"""Of one reading of a source."""

CheckSchema = Callable[[JsonObject], object]
"""Raises ToolFailure, HubFailure or ValueError for a schema that the hub cannot judge by."""


def unusable(schema: JsonObject, check_schema: CheckSchema) -> str:
    """Why it cannot be used, for a sentence; empty when it can."""
    text = written(schema)
    if text is None:
        return "it is nested too deeply."
    if len(text) > SCHEMA_MAX_BYTES:
        return f"it has more than {SCHEMA_MAX_BYTES} bytes."
    try:
        check_schema(schema)
    except ToolFailure as failure:
        return failure.error.message
    except HubFailure as failure:
        return failure.message
    except (ValueError, RecursionError) as refused:
        return str(refused) or "it is nested too deeply."
    return ""


# MCP lets a server name its tools almost freely (SEP-986 only recommends a grammar); names in the hub are
# `source/path.verb`. A character outside that grammar is replaced, never dropped, so that different names stay
# different: ASCII becomes `_`, anything else its code point (`u641c`), which also makes hidden characters visible.
# Names that still look alike are found by `skeleton`.

OWN_NAME_MAX_CHARS: Final = 256
"""A longer name of a remote tool is refused: nobody writes it by hand, and every call would carry it."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_ALLOWED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGEST_CHARS: Final = 8


class Unnamed(Exception):
    """Something has no name by which the hub could know it; `problem` is a sentence for operators."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def full_name(source: str, own_name: str) -> str:
    """`source/path.verb` for a tool that its source calls `own_name` (not empty): at most 128 characters."""
    path = own_name if _PLAIN.fullmatch(own_name) else ".".join(_word(word) for word in own_name.split("."))
    room = NAME_MAX_CHARS - len(source) - 1
    if len(path) > room:
        digest = hashlib.sha256(own_name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        path = f"{path[: room - _DIGEST_CHARS - 1].rstrip('.-')}_{digest}"
    return f"{source}/{path}"


def known_name(source: str, own_name: str, what: str) -> str:
    """`full_name`, as the hub can know it. `what` begins the sentence, such as `A tool`. Raises Unnamed."""
    name = full_name(source, own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        raise Unnamed(f"{what} named `{one_line(own_name, 80)}` was left out: {refused.message}.") from refused
    return name


def _word(word: str) -> str:
    """One of the words between dots."""
    spelled = "".join(char if char in _ALLOWED else _spelled(char) for char in word)
    return f"_{spelled}" if not spelled or spelled[0] == "-" else spelled


def _spelled(char: str) -> str:
    return "_" if char.isascii() else f"u{ord(char):04x}"


_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 * 1024 * 1024


class ToolTermsLike(Protocol):
    """What sources.yaml says of tools (`ToolTerms`)."""

    @property
    def offered(self) -> bool: ...
    @property
    def read_only(self) -> bool | None: ...
    @property
    def idempotent(self) -> bool | None: ...
    @property
    def destructive(self) -> bool | None: ...
    @property
    def capabilities(self) -> tuple[str, ...] | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def error_pattern(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Override:
    """What the operator says of one tool; None: nothing, so that it stays as the source says, or safer."""

    offered: bool = True
    read_only: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None
    capabilities: tuple[str, ...] | None = None
    timeout_s: float | None = None
    error_pattern: str = ""
    """A text result in which this regular expression (RE2, linear time) is found is an error."""
    finds_error: Callable[[str], bool] | None = None
    """`error_pattern`, compiled."""


_SILENT: Final = Override()


class Overrides:
    """All terms of one source."""

    def __init__(self, terms: Mapping[str, ToolTermsLike] | None = None) -> None:
        """`terms`: glob to terms, in the order in which they were written.

        Raises ValueError when an `error_pattern` is no regular expression.
        """
        self._rules: tuple[tuple[re.Pattern[str], Override], ...] = tuple(
            (re.compile(fnmatch.translate(glob)), _override(glob, said))
            for glob, said in reversed([*(terms or {}).items()])
        )

    def of(self, own_name: str) -> Override:
        """What was said last of a tool of that name."""
        return next((override for glob, override in self._rules if glob.match(own_name)), _SILENT)


def _override(glob: str, said: ToolTermsLike) -> Override:
    return Override(
        offered=said.offered,
        read_only=said.read_only,
        idempotent=said.idempotent,
        destructive=said.destructive,
        capabilities=said.capabilities,
        timeout_s=said.timeout_s,
        error_pattern=said.error_pattern,
        finds_error=_compiled(glob, said.error_pattern) if said.error_pattern else None,
    )


def _compiled(glob: str, pattern: str) -> Callable[[str], bool]:
    try:
        compiled: Any = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        raise ValueError(
            f"the error_pattern of `{glob}` is not a regular expression that runs in linear time"
        ) from error

    def finds(text: str) -> bool:
        return compiled.search(text) is not None

    return finds


def limited(problems: list[str]) -> tuple[str, ...]:
    """The first problems of a reading, and how many more there are."""
    if len(problems) <= PROBLEMS_MAX:
        return tuple(problems)
    return (*problems[: PROBLEMS_MAX - 1], f"And {len(problems) - PROBLEMS_MAX + 1} more.")
