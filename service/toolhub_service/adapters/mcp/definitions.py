"""Makes a `Definition` of each tool in `tools/list`, independently, so that a broken one affects no other.

All of it is untrusted. No value is traversed before its size is known. A part that cannot be used is left out, and the
tool says so (`ToolSpec.unenforced`); only an input schema beyond the bounds gives a definition with a `problem` and
placeholder schemas. A server's annotations may raise the risk and never lower it: only the
operator's overrides can declare that a tool changes nothing. `Definition.remote` holds the texts that callers rely on,
verbatim.

Most readings return the same tools as the last one. A definition is rebuilt only when the tool's JSON has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from mcp.shared.inbound import find_invalid_x_mcp_header

from toolhub_service.adapters.definitions import (
    ANY_OBJECT,
    DESCRIPTION_MAX_BYTES,
    NO_MASK,
    PROBLEM_MAX_CHARS,
    SCHEMA_MAX_BYTES,
    Overrides,
    RepairSchema,
    SourceTerms,
    UsableSchema,
    usable_input,
    usable_output,
)
from toolhub_service.adapters.mcp.answers import own_meta
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS, Unnamed, known_name
from toolhub_service.adapters.upstream import as_string, keep_json, one_line, shorten, write_json
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, CostHints
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.sections.source_config import ToolTerms

HINTS_MAX_BYTES: Final = 16 * 1024  # of annotations, execution terms and title, each
TITLE_MAX_CHARS: Final = 200
ICONS_MAX: Final = 8
_ICON_SOURCES: Final = ("https://", "http://", "data:image/")
FORBIDDEN: Final = "forbidden"
# Of the beginning of a long description in a pin, as JSON: a character may become six.
_PINNED_WORDS_MAX_BYTES: Final = 8 * DESCRIPTION_MAX_BYTES

_ANYTHING: Final[JsonObject] = {}
_HEADER_KEY: Final = b'"x-mcp-header"'


class DefinitionReader:
    """Reads the tools of one source."""

    def __init__(
        self,
        terms: SourceTerms,
        overrides: Overrides,
        repair: RepairSchema,
        mask: Mask = NO_MASK,
    ) -> None:
        """`repair` raises ToolFailure, HubFailure or ValueError for a schema of which the hub can use nothing.

        `mask` hides the source's own secrets: every caller reads a definition's texts, and pins store them.
        """
        self._terms = terms
        self._overrides = overrides
        self._repair = repair
        self._mask = mask
        self._before: dict[bytes, Definition | None] = {}
        self._now: dict[bytes, Definition | None] = {}
        self.read_bytes = 0  # JSON of the tools in this reading so far

    def begin(self, mask: Mask | None = None) -> None:
        """Begin a new reading: definitions that the last one did not contain are dropped. `mask`: hides the secrets of
        this and later readings."""
        self._mask = mask or self._mask
        # Keyed by the digest of the JSON, so that reading a thousand unchanged tools checks no schema again.
        self._before, self._now = self._now, {}
        self.read_bytes = 0

    def read(self, tool: JsonValue, *, is_modern: bool) -> Definition | None:
        """Return the definition; None when the operator does not offer the tool. Raises Unnamed.

        `is_modern`: the server speaks 2026-07-28 or later, where a tool must not require headers that cannot be sent.
        """
        own_name = _own_name(tool)
        assert isinstance(tool, Mapping)  # otherwise it would have had no name
        text = write_json(tool)
        if text is not None and self._mask.finds(text):
            own_name, tool, text = self._mask_tool(own_name, tool)
        if text is None:
            return self._make_definition(own_name, {}, "It is nested too deeply to be read.")
        self.read_bytes += len(text)
        key = hashlib.sha256(text).digest() + bytes([is_modern])
        if key not in self._now:
            known = key in self._before
            self._now[key] = self._before[key] if known else self._read_tool(own_name, tool, text, is_modern=is_modern)
        return self._now[key]

    def _mask_tool(self, own_name: str, tool: JsonObject) -> tuple[str, JsonObject, bytes | None]:
        """Return the tool without the source's secrets. Raises Unnamed for a name that holds one, as names cannot be
        masked."""
        # A masked name could not be called, because the server knows only the real one.
        if self._mask.text(own_name) != own_name:
            raise Unnamed("A tool was left out: its name contains a secret of the source.")
        shown = self._mask.object(tool)
        return own_name, shown, write_json(shown)

    def _read_tool(self, own_name: str, tool: JsonObject, text: bytes, *, is_modern: bool) -> Definition | None:
        arguments = usable_input(tool.get("inputSchema"), self._repair)
        problem = f"Its inputSchema cannot be used: {arguments.problem}" if arguments.problem else ""
        if not problem and is_modern and _HEADER_KEY in text:
            reason = find_invalid_x_mcp_header(dict(arguments.schema))
            problem = f"It asks for headers that cannot be sent: {reason}." if reason else ""
        results = UsableSchema(_ANYTHING) if problem else usable_output(tool.get("outputSchema"), self._repair)
        is_async = not is_modern and task_support(tool) == "required"
        return self._make_definition(
            own_name,
            tool,
            problem,
            is_async=is_async,
            input_schema=ANY_OBJECT if problem else arguments.schema,
            output_schema=results.schema,
            unenforced=(*_find_omissions(tool), *arguments.unenforced, *results.unenforced),
        )

    def _make_definition(
        self,
        own_name: str,
        tool: JsonObject,
        problem: str,
        *,
        is_async: bool = False,
        input_schema: JsonObject = ANY_OBJECT,
        output_schema: JsonObject = _ANYTHING,
        unenforced: tuple[str, ...] = (),
    ) -> Definition | None:
        chosen = self._overrides.of(own_name)
        if not chosen.offered:
            return None
        spec = self._terms.spec(
            known_name(self._terms.name, own_name, "A tool"),
            own_name,
            chosen,
            description=_description(tool),
            input_schema=input_schema,
            output_schema=output_schema,
            annotations=_annotations(_object(tool, "annotations"), chosen),
        )
        presentation = presentation_of(tool, chosen)
        if is_async or unenforced or presentation:
            cost = CostHints(is_async=is_async)
            spec = replace(spec, cost=cost, unenforced=unenforced, presentation=presentation or None)
        return Definition(
            spec,
            _remote(own_name, tool),
            one_line(problem, PROBLEM_MAX_CHARS) if problem else "",
            follows_words=self._terms.follows_words,
        )


def presentation_of(tool: JsonObject, chosen: ToolTerms) -> JsonObject:
    """Return what clients, not models, are shown of a tool, each part of bounded size."""
    shown: dict[str, JsonValue] = {}
    if title := as_string(tool.get("title")):
        shown["title"] = one_line(title, TITLE_MAX_CHARS)
    icons = tool.get("icons")
    if isinstance(icons, list) and (kept := list(filter(_is_icon, icons[:ICONS_MAX]))):
        shown["icons"] = kept
    if meta := own_meta(tool):
        shown["_meta"] = meta
    if hints := _own_hints(_object(tool, "annotations"), chosen):
        shown["annotations"] = hints
    return shown if len(write_json(shown) or b"") <= 2 * HINTS_MAX_BYTES else {}


def _is_icon(icon: JsonValue) -> bool:
    """Return whether a client may load it: no script, no local file."""
    return isinstance(icon, Mapping) and as_string(icon.get("src")).startswith(_ICON_SOURCES)


def _own_hints(hints: JsonObject, chosen: ToolTerms) -> JsonObject:
    """Return the server's hints on which the operator says nothing: for clients, the hub itself does not believe
    them."""
    undecided = {
        "readOnlyHint": chosen.read_only,
        "destructiveHint": chosen.destructive,
        "idempotentHint": chosen.idempotent,
        "openWorldHint": None,
    }
    return {name: hints[name] for name, word in undecided.items() if word is None and isinstance(hints.get(name), bool)}


def task_support(tool: JsonObject) -> str:
    """Return `required`, `optional` or FORBIDDEN: whether calls run as tasks of the server (2025-11-25)."""
    support = _object(tool, "execution").get("taskSupport")
    return support if support in ("required", "optional") and isinstance(support, str) else FORBIDDEN


def _own_name(tool: JsonValue) -> str:
    if not isinstance(tool, Mapping):
        raise Unnamed("An entry of the list of tools is not an object and was left out.")
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise Unnamed("A tool without a name was left out.")
    if len(name) > OWN_NAME_MAX_CHARS:
        raise Unnamed(f"A tool named `{one_line(name, 80)}` was left out: its name is too long.")
    return name


def _description(tool: JsonObject) -> str:
    """Return the text that models read, which is all that a pin holds of it: its beginning where it is too long."""
    given = tool.get("description")
    # As `keep_text` writes what was too long, and a pin gives it back.
    return as_string(given.get("beginning")) if isinstance(given, Mapping) else as_string(given)


def _find_omissions(tool: JsonObject) -> Iterator[str]:
    """Yield what cannot be used besides the schemas."""
    description = tool.get("description")
    whole = as_string(description)
    if isinstance(description, Mapping) or len(shorten(whole, DESCRIPTION_MAX_BYTES)) < len(whole):
        yield f"description: only its first {DESCRIPTION_MAX_BYTES:,} bytes are shown"
    elif description is not None and not isinstance(description, str):
        yield "description is not text and is left out"
    for place in ("annotations", "execution"):
        if tool.get(place) is not None and not isinstance(tool[place], Mapping):
            yield f"{place} is not a JSON object and is left out"


def _annotations(hints: JsonObject, chosen: ToolTerms) -> Annotations:
    """Return the operator's annotations, and those of the server's hints that raise the risk."""
    return Annotations(
        # The server's own readOnlyHint is not trusted: only the operator can let a call pass as a read.
        read_only=chosen.read_only is True,
        destructive=hints.get("destructiveHint") is True if chosen.destructive is None else chosen.destructive,
        idempotent=chosen.idempotent is True,
        open_world=hints.get("openWorldHint") is True,
        supports_progress=True,
    )


def _remote(own_name: str, tool: JsonObject) -> JsonObject:
    """Return the texts that callers rely on, verbatim, each of a size that can be stored."""
    remote: dict[str, JsonValue] = {"name": own_name}
    for place, max_bytes in _KEPT.items():
        if tool.get(place) is not None:
            is_from_pin = place == "description" and isinstance(tool[place], Mapping)
            remote[place] = keep_json(tool[place], _PINNED_WORDS_MAX_BYTES if is_from_pin else max_bytes)
    remote.setdefault("description", "")
    return remote


_KEPT: Final[Mapping[str, int]] = {
    "title": HINTS_MAX_BYTES,
    "description": DESCRIPTION_MAX_BYTES,
    "inputSchema": SCHEMA_MAX_BYTES,
    "outputSchema": SCHEMA_MAX_BYTES,
    "annotations": HINTS_MAX_BYTES,
    "execution": HINTS_MAX_BYTES,
}


def _object(tool: JsonObject, place: str) -> JsonObject:
    found = tool.get(place)
    return found if isinstance(found, Mapping) else _ANYTHING
