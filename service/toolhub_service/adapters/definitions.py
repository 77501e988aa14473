"""What the definitions of all sources share: schema checks, names in the hub, and the operator's overrides.

A remote server may declare its tools harmless; only the operator's overrides are trusted. They are keyed by a glob over
the tools' own names. If several globs match a name, only the last one applies.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import re2
from msgspec import structs

from toolhub_service.adapters.upstream import one_line, shorten, write_json
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits, ToolSpec
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.schema.relaxing import Relaxed
from toolhub_service.sections.source_config import Source, ToolTerms

SCHEMA_MAX_BYTES: Final = 256 * 1024
DESCRIPTION_MAX_BYTES: Final = 16 * 1024
PROBLEM_MAX_CHARS: Final = 500
PROBLEMS_MAX: Final = 50  # per reading of a source
NOTE_MAX_CHARS: Final = 240
NOTES_MAX: Final = 10  # per schema
ANY_OBJECT: Final[JsonObject] = {"type": "object"}  # replaces an input schema that cannot be used
NO_MASK: Final = Mask()
_RETRIES: Final = 2  # where the operator has declared a repeat safe


UNSET_LIMITS: Final = ToolLimits(timeout_s=300.0, call_max_s=300.0, call_max_in_job_s=3_600.0, idle_timeout_s=60.0)
"""Of calls whose progress says that they are alive, where the operator names no limit."""


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
    """0: as `UNSET_LIMITS` say."""
    idle_timeout_s: float = 0.0
    """0: 60 s where `timeout_s` is 0, else no limit."""
    max_concurrency: int = 0
    mcp_text_max_bytes: int = 0
    follows_words: bool = False
    """Whether new titles and descriptions of its tools are accepted without a person."""

    @classmethod
    def of(cls, kind: ToolKind, name: str, endpoint: str, entry: Source) -> SourceTerms:
        """Return the terms of an entry of sources.yaml."""
        return cls(
            *(kind, name, endpoint, entry.capabilities, entry.tags),
            timeout_s=entry.timeout_s,
            max_concurrency=entry.max_concurrency,
            mcp_text_max_bytes=entry.mcp_text_max_bytes or 0,
        )

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
            description=shorten(description, DESCRIPTION_MAX_BYTES),
            input_schema=input_schema,
            output_schema=output_schema,
            tags=tuple(dict.fromkeys((*self.tags, self.kind.value, self.name))),
            capabilities=frozenset(capabilities or (self.upstream,)),
            annotations=annotations,
            limits=structs.replace(
                self._times(chosen),
                max_retries=_RETRIES if annotations.safe_to_repeat else 0,
                max_concurrency=self.max_concurrency,
                mcp_text_max_bytes=self.mcp_text_max_bytes,
            ),
            source=self.name,
            endpoint=self.endpoint,
            resource_id=own_name,
            upstream=self.upstream,
        )

    def _times(self, chosen: ToolTerms) -> ToolLimits:
        """Return the limits of time. One that the operator names is the only one, unless it names another beside it."""
        named_s = chosen.timeout_s or self.timeout_s
        idle_s = chosen.idle_timeout_s or self.idle_timeout_s
        if not named_s:
            return structs.replace(UNSET_LIMITS, idle_timeout_s=idle_s or UNSET_LIMITS.idle_timeout_s)
        return ToolLimits(timeout_s=named_s, call_max_s=named_s, idle_timeout_s=idle_s)


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
    text = write_json(schema)
    if text is None:
        return "it is nested too deeply."
    if len(text) > SCHEMA_MAX_BYTES:
        return f"it has more than {SCHEMA_MAX_BYTES} bytes."
    return refusal(lambda: check_schema(schema))


class UsableSchema(NamedTuple):
    """A server's schema as far as the hub can use it."""

    schema: JsonObject
    unenforced: tuple[str, ...] = ()
    """What is left out or not enforced, a clause each."""
    problem: str = ""
    """Why nothing of it can be used, as part of a sentence."""


_KEPT_AS: Final = frozenset({"bytes", "sha256"})  # a schema too large for a pin, as `keep_json` writes it


# Raises SchemaRefused, a ValueError, where nothing of a schema can be used.
RepairSchema = Callable[[JsonObject], Relaxed]


def usable_input(schema: JsonValue, repair: RepairSchema) -> UsableSchema:
    """Return the schema of a tool's arguments, which are an object whatever the schema says."""
    if not isinstance(schema, Mapping):
        why = "is missing" if schema is None else "is not a JSON object"
        return UsableSchema(ANY_OBJECT, (f"inputSchema {why}: any arguments are passed on",))
    if schema.keys() == _KEPT_AS:
        return UsableSchema(ANY_OBJECT, problem=f"it has more than {SCHEMA_MAX_BYTES} bytes.")
    usable = _usable(schema, repair)
    if usable.problem:
        return usable
    kind = usable.schema.get("type")
    if kind == "object":
        return usable
    notes = usable.unenforced
    if kind is not None and not (isinstance(kind, list | tuple) and "object" in kind):
        notes = (*notes, "inputSchema: its `type` is not `object`, which arguments are")
    return usable._replace(schema={**usable.schema, "type": "object"}, unenforced=notes)


def usable_output(schema: JsonValue, repair: RepairSchema) -> UsableSchema:
    """Return the schema of a tool's results; `{}`, with the reason, where it cannot be used."""
    if schema is None:
        return UsableSchema({})
    if not isinstance(schema, Mapping):
        return UsableSchema({}, ("outputSchema is not a JSON object: results are not checked",))
    usable = _usable(schema, repair, "outputSchema")
    return UsableSchema({}, (f"outputSchema: {usable.problem}",)) if usable.problem else usable


def _usable(schema: JsonObject, repair: RepairSchema, place: str = "inputSchema") -> UsableSchema:
    found: list[Relaxed] = []
    if reason := unusable(schema, lambda given: found.append(repair(given))):
        return UsableSchema({}, problem=reason)
    notes = tuple(one_line(f"{place}: {note}", NOTE_MAX_CHARS) for note in found[0].notes[:NOTES_MAX])
    return UsableSchema(found[0].schema, notes)


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
            (re.compile(fnmatch.translate(glob)), terms_of_glob, _compile_pattern(glob, terms_of_glob.error_pattern))
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


def _compile_pattern(glob: str, pattern: str) -> FindsError | None:
    if not pattern:
        return None
    try:
        compiled: Any = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        raise ValueError(f"the error_pattern of `{glob}` is not a valid RE2 regular expression") from error

    def finds(text: str) -> bool:
        return compiled.search(text) is not None

    return finds


def limit_problems(problems: list[str]) -> tuple[str, ...]:
    """Return the first problems of a reading, and how many more there are."""
    if len(problems) <= PROBLEMS_MAX:
        return tuple(problems)
    return (*problems[: PROBLEMS_MAX - 1], f"And {len(problems) - PROBLEMS_MAX + 1} more.")
