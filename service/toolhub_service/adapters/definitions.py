"""What the definitions of all sources share: schema checks, names in the hub, and the operator's overrides.

A remote server may declare its tools harmless; only the operator's overrides are trusted. They are keyed by a glob over
the tools' own names. If several globs match a name, only the last one applies.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import re2

from toolhub_service.adapters.source_config import Source, ToolTerms
from toolhub_service.adapters.upstream import one_line, shortened, written
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits, ToolSpec
from toolhub_service.guards.secrets import Mask
from toolhub_service.registry.catalog import NAME_MAX_CHARS, check_name

SCHEMA_MAX_BYTES: Final = 256 * 1024
DESCRIPTION_MAX_BYTES: Final = 16 * 1024
PROBLEM_MAX_CHARS: Final = 500
PROBLEMS_MAX: Final = 50  # per reading of a source
ANY_OBJECT: Final[JsonObject] = {"type": "object"}  # replaces an input schema that cannot be used
NO_MASK: Final = Mask()
_RETRIES: Final = 2  # where the operator has declared a repeat safe


@dataclass(frozen=True, slots=True)
class SourceTerms:
    """The operator's terms for a whole source, as far as the definitions of its tools show them."""

    kind: ToolKind
    name: str
    endpoint: str = ""
    """Address of the source, without credentials."""
    capabilities: tuple[str, ...] = ()
    """Capabilities that a principal needs to call its tools; empty: `<kind>:<name>`."""
    tags: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_concurrency: int = 0

    @classmethod
    def of(cls, kind: ToolKind, name: str, endpoint: str, entry: Source) -> SourceTerms:
        """Return the terms of an entry of sources.yaml."""
        return cls(kind, name, endpoint, entry.capabilities, entry.tags, entry.timeout_s, entry.max_concurrency)

    @property
    def upstream(self) -> str:
        """Key of the breaker and the concurrency limit that the source's tools share."""
        return f"{self.kind.value}:{self.name}"

    def spec(
        self,
        name: str,
        own_name: str,
        chosen: ToolTerms,
        *,
        description: str,
        input_schema: JsonObject,
        output_schema: JsonObject,
        annotations: Annotations,
    ) -> ToolSpec:
        """Return the definition of a tool; `chosen`: the operator's terms for it."""
        capabilities = self.capabilities if chosen.capabilities is None else chosen.capabilities
        return ToolSpec(
            name=name,
            kind=self.kind,
            description=shortened(description, DESCRIPTION_MAX_BYTES),
            input_schema=input_schema,
            output_schema=output_schema,
            tags=tuple(dict.fromkeys((*self.tags, self.kind.value, self.name))),
            capabilities=frozenset(capabilities or (self.upstream,)),
            annotations=annotations,
            limits=ToolLimits(
                timeout_s=chosen.timeout_s or self.timeout_s,
                call_max_s=chosen.timeout_s or self.timeout_s,
                max_retries=_RETRIES if annotations.safe_to_repeat else 0,
                max_concurrency=self.max_concurrency,
            ),
            source=self.name,
            endpoint=self.endpoint,
            resource_id=own_name,
            upstream=self.upstream,
        )


# Raises ToolFailure, HubFailure or ValueError for a schema that the hub cannot validate with.
CheckSchema = Callable[[JsonObject], object]


def refusal(check: Callable[[], object]) -> str:
    """Return why a check of a name or a schema fails, as part of a sentence; empty when it passes."""
    try:
        check()
    except ToolFailure as failure:
        return failure.error.message
    except HubFailure as failure:
        return failure.message
    except (ValueError, RecursionError) as refused:
        return str(refused) or "it is nested too deeply."
    return ""


def unusable(schema: JsonObject, check_schema: CheckSchema) -> str:
    """Return why a schema cannot be used, as part of a sentence; empty when it can."""
    text = written(schema)
    if text is None:
        return "it is nested too deeply."
    if len(text) > SCHEMA_MAX_BYTES:
        return f"it has more than {SCHEMA_MAX_BYTES} bytes."
    return refusal(lambda: check_schema(schema))


# MCP hardly restricts the names of tools (SEP-986 only recommends a grammar); names in the hub are `source/path.verb`.
# A character outside that grammar is replaced, never dropped, so that different names stay different: ASCII becomes
# `_`, anything else its code point (`u641c`), which also makes hidden characters visible. `skeleton` finds names that
# still look alike.

# A longer name of a remote tool is refused: nobody writes it by hand, and every call would carry it.
OWN_NAME_MAX_CHARS: Final = 256

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_ALLOWED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGEST_CHARS: Final = 8


class Unnamed(Exception):
    """Something has no name that the hub can use; `problem` is a sentence for operators."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def full_name(source: str, own_name: str) -> str:
    """Return `source/path.verb` for a tool that its source calls `own_name` (not empty): at most 128 characters."""
    path = own_name if _PLAIN.fullmatch(own_name) else ".".join(_word(word) for word in own_name.split("."))
    room = NAME_MAX_CHARS - len(source) - 1
    if len(path) > room:
        digest = hashlib.sha256(own_name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        # The digest distinguishes long names with the same beginning.
        path = f"{path[: room - _DIGEST_CHARS - 1].rstrip('.-')}_{digest}"
    return f"{source}/{path}"


def known_name(source: str, own_name: str, what: str) -> str:
    """Return `full_name` if it is valid in the hub; otherwise raise Unnamed. `what` begins the sentence, such as `A
    tool`."""
    name = full_name(source, own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        raise Unnamed(f"{what} named `{one_line(own_name, 80)}` was left out: {refused.message}.") from refused
    return name


def _word(word: str) -> str:
    """Return one of the words between dots, in the hub's grammar."""
    spelled = "".join(char if char in _ALLOWED else _spelled(char) for char in word)
    return f"_{spelled}" if not spelled or spelled[0] == "-" else spelled


def _spelled(char: str) -> str:
    return "_" if char.isascii() else f"u{ord(char):04x}"


_OPTIONS: Final = re2.Options()
# RE2 writes errors to standard error directly, past the hub's log and its redaction.
_OPTIONS.log_errors = False
# Memory for matching: the pattern is the operator's, but it runs over untrusted answers.
_OPTIONS.max_mem = 8 * 1024 * 1024


_NO_TERMS: Final = ToolTerms()
FindsError = Callable[[str], bool]


class Overrides:
    """The operator's terms for all tools of one source."""

    def __init__(self, terms: Mapping[str, ToolTerms] | None = None) -> None:
        """`terms`: glob to terms, in the order in which they were written.

        Raises ValueError when an `error_pattern` is no regular expression.
        """
        self._rules: tuple[tuple[re.Pattern[str], ToolTerms, FindsError | None], ...] = tuple(
            (re.compile(fnmatch.translate(glob)), terms_of_glob, _compiled(glob, terms_of_glob.error_pattern))
            # Of several globs that match, the last one written applies.
            for glob, terms_of_glob in reversed([*(terms or {}).items()])
        )

    def of(self, own_name: str) -> ToolTerms:
        """Return the terms of the last glob that matches the name."""
        return next((found for glob, found, _ in self._rules if glob.match(own_name)), _NO_TERMS)

    def finds_error(self, own_name: str) -> FindsError | None:
        """Return the check whether a text result of that tool is an error by the operator's pattern; None without a
        pattern."""
        return next((finds for glob, _, finds in self._rules if glob.match(own_name)), None)


def _compiled(glob: str, pattern: str) -> FindsError | None:
    if not pattern:
        return None
    try:
        compiled: Any = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        raise ValueError(f"the error_pattern of `{glob}` is not a valid RE2 regular expression") from error

    def finds(text: str) -> bool:
        return compiled.search(text) is not None

    return finds


def limited(problems: list[str]) -> tuple[str, ...]:
    """Return the first problems of a reading, and how many more there are."""
    if len(problems) <= PROBLEMS_MAX:
        return tuple(problems)
    return (*problems[: PROBLEMS_MAX - 1], f"And {len(problems) - PROBLEMS_MAX + 1} more.")
