"""What the operator says of a source's tools, by glob over the names that the tools bear there.

A remote server may say that its tools are harmless; only the operator is believed. The last glob that matches a name
counts, whole. Patterns are compiled once, when the source is put together.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import re2

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 * 1024 * 1024


class ToolTermsLike(Protocol):
    """As they are configured; see settings/sources.py."""

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
