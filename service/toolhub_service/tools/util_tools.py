"""The core/util.* tools, ready to be registered."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import unicodedata
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Meta, field

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.mustache import RenderLimits, render
from toolhub_service.tools.query_limits import Language, QueryLimits
from toolhub_service.tools.step_budget import LongSteps
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

# core/util.text.truncate: the beginning of a text, with a marker where it was cut.

_JOINER = "\u200d"
# Characters to drop to keep a grapheme whole; longer stacks of marks are an attack, not writing.
_BACK_MOST = 32


class TextTruncate(Tool["TextTruncate.In", "TextTruncate.Out"]):
    name = "core/util.text.truncate"
    description = (
        "Cut a text to at most maxChars characters, the marker included; a shorter text comes back unchanged. "
        "Accents and emoji are not cut in half. Use it to save tokens before passing text on."
    )
    tags = ("text", "truncate", "shorten", "cut", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Cut to 20 characters", {"text": "A sentence that is longer than that.", "maxChars": 20}),)

    class In(ToolInput, frozen=True):
        text: Annotated[str, Meta(description="What to cut.")]
        max_chars: Annotated[int, Meta(description="Longest allowed result in characters (code points).", ge=1)]
        marker: Annotated[str, Meta(description="Put where the text was cut; may be empty.", max_length=100)] = "…"

    class Out(ToolOutput, frozen=True):
        text: str
        truncated: bool
        total_chars: int

    async def run(self, args: TextTruncate.In, context: ToolContext) -> TextTruncate.Out:
        text, cut = truncate(args.text, args.max_chars, args.marker)
        context.truncated = cut
        context.proves(EvidenceType.TEXT, "text", f"Kept {len(text)} of {len(args.text)} characters.")
        return self.Out(text=text, truncated=cut, total_chars=len(args.text))


def truncate(text: str, max_chars: int, marker: str) -> tuple[str, bool]:
    """Return the text, or its beginning and the marker in `max_chars` characters; a marker that leaves no room is
    omitted."""
    if len(text) <= max_chars:
        return text, False
    if len(marker) >= max_chars:
        marker = ""
    return text[: _boundary(text, max_chars - len(marker))] + marker, True


def _boundary(text: str, at: int) -> int:
    """Return the last place at or before `at` that does not separate a character from its marks, joiners or second flag
    letter.

    A simplification of UAX #29: enough for accents, emoji sequences and flags, without tables.
    """
    lowest = max(1, at - _BACK_MOST)
    for place in range(at, lowest - 1, -1):
        if not _belongs_together(text, place):
            return place
    return at


def _belongs_together(text: str, place: int) -> bool:
    before = text[place - 1]
    after = text[place]
    if _JOINER in (before, after) or _is_extension(after):
        return True
    if before == "\r" and after == "\n":
        return True
    return _is_flag_letter(after) and _flag_letters_before(text, place) % 2 == 1


def _is_extension(char: str) -> bool:
    """Return whether it is a combining mark, variation selector or skin tone."""
    return unicodedata.category(char) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= char <= "\U0001f3ff"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flag_letters_before(text: str, place: int) -> int:
    count = 0
    while count < min(place, _BACK_MOST) and _is_flag_letter(text[place - 1 - count]):
        count += 1
    return count


# core/util.template.render: text from a Mustache template and JSON values.


class TemplateRender(Tool["TemplateRender.In", "TemplateRender.Out"]):
    name = "core/util.template.render"
    description = (
        "Render a Mustache template over JSON data, for reports and mails. {{name}} is HTML-escaped, {{{name}}} not. "
        "{{#items}}…{{/items}} repeats for a list or shows for a true value, {{^items}}…{{/items}} shows for false, "
        "null, 0 and empty; {{.}} is the current item, {{a.b}} a nested value, {{>name}} a partial from `partials`. "
        "No code, no files: missing names render as nothing. Output and work are bounded."
    )
    tags = ("template", "mustache", "render", "report", "markdown", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example(
            "A list in Markdown",
            {
                "template": "# {{title}}\n{{#items}}\n- {{.}}\n{{/items}}\n",
                "data": {"title": "Fruit", "items": ["fig", "plum"]},
            },
        ),
    )

    class In(ToolInput, frozen=True):
        template: Annotated[str, Meta(description="The Mustache template.")]
        data: Annotated[Any, Meta(description="The JSON value to render, usually an object.")] = None
        partials: Annotated[dict[str, str], Meta(description="Templates that {{>name}} includes, by name.")] = field(
            default_factory=dict
        )

    class Out(ToolOutput, frozen=True):
        text: str

    def __init__(self, limits: RenderLimits | None = None) -> None:
        limits = limits or RenderLimits()
        self._steps = LongSteps(limits, limits.at_once)

    async def run(self, args: TemplateRender.In, context: ToolContext) -> TemplateRender.Out:
        text = await self._steps.run(partial(render, args.template, args.data, args.partials), context)
        context.proves(EvidenceType.TEXT, "text", f"Rendered {len(text)} characters.")
        return self.Out(text=text)


# core/util.json.select: a part of a JSON value, by JMESPath or JSONPath.

_BOOKS: JsonObject = {"books": [{"title": "Emma", "price": 8}, {"title": "Ulysses", "price": 20}]}


class JsonSelect(Tool["JsonSelect.In", "JsonSelect.Out"]):
    name = "core/util.json.select"
    description = (
        "Select, filter or reshape a part of a JSON value, to pass on less. JMESPath (default) returns one value, null "
        "when nothing matches; JSONPath (RFC 9535) is recognized by the $ that it starts with, such as $.a[*].b, and "
        "returns the list of all matches. Work and result are bounded."
    )
    tags = ("json", "jmespath", "jsonpath", "select", "filter", "query", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example("Filter a list and take a field", {"json": _BOOKS, "path": "books[?price < `10`].title"}),
        Example("The same in JSONPath", {"json": _BOOKS, "path": "$.books[?@.price < 10].title"}),
    )

    class In(ToolInput, frozen=True):
        json: Annotated[Any, Meta(description="The value to select from: an object or array, not JSON as text.")]
        path: Annotated[str, Meta(description="The JMESPath or JSONPath expression.", min_length=1, max_length=2048)]
        language: Annotated[
            Language, Meta(description="Which language the path is written in; one that starts with $ is JSONPath.")
        ] = "jmespath"

    class Out(ToolOutput, frozen=True):
        value: Any

    def __init__(self) -> None:
        limits = QueryLimits()
        self._steps = LongSteps(limits, limits.at_once)

    async def run(self, args: JsonSelect.In, context: ToolContext) -> JsonSelect.Out:
        from toolhub_service.tools.query import select

        # No JMESPath expression starts with $.
        language: Language = "jsonpath" if args.path.lstrip().startswith("$") else args.language
        value = await self._steps.run(partial(select, args.json, args.path.strip(), language), context)
        context.proves(EvidenceType.TOOL, args.path[:200], f"Selected by {language}: {_shape(value)}.")
        return self.Out(value=value)


def _shape(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    return "nothing" if value is None else "one value"


# core/util.hash.sha256Text: the SHA-256 of a text.


class HashSha256Text(Tool["HashSha256Text.In", "HashSha256Text.Out"]):
    name = "core/util.hash.sha256Text"
    description = (
        "Return the SHA-256 of a text (of its UTF-8 bytes) as 64 lower-case hex digits: to compare, deduplicate or "
        "cite content. For a file use core/fs.sha256."
    )
    tags = ("hash", "sha256", "checksum", "digest", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Hash a word", {"text": "hello"}),)

    class In(ToolInput, frozen=True):
        text: Annotated[str, Meta(description="What to hash; may be empty.")]

    class Out(ToolOutput, frozen=True):
        sha256: str

    async def run(self, args: HashSha256Text.In, context: ToolContext) -> HashSha256Text.Out:
        data = args.text.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(data).hexdigest()
        context.proves(EvidenceType.TEXT, "text", f"Hashed {len(data)} bytes.", sha256=digest)
        return self.Out(sha256=digest)


# core/util.time.now: the time, in any time zone. It is the cheapest tool.


class TimeNow(Tool["TimeNow.In", "TimeNow.Out"]):
    name = "core/util.time.now"
    description = (
        "Return the current date and time: ISO 8601 with offset, milliseconds since 1970 (UTC) and the time zone. "
        "Use it instead of guessing today's date."
    )
    tags = ("time", "date", "clock", "timezone", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example("Now in UTC", {}),
        Example("Now in Berlin", {"timezone": "Europe/Berlin"}),
    )

    class In(ToolInput, frozen=True):
        timezone: Annotated[str, Meta(description="IANA name, such as Europe/Berlin.", min_length=1, max_length=64)] = (
            "UTC"
        )

    class Out(ToolOutput, frozen=True):
        iso: str
        epoch_ms: int
        timezone: str

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names: frozenset[str] | None = None
        self._zones: dict[str, tzinfo] = {"UTC": UTC}

    async def run(self, args: TimeNow.In, context: ToolContext) -> TimeNow.Out:
        zone = self._zones.get(args.timezone) or await self._load(args.timezone)
        now_ms = self._clock.unix_ms()
        iso = datetime.fromtimestamp(now_ms / 1000, zone).isoformat(timespec="milliseconds")
        context.proves(EvidenceType.METRIC, "clock", f"The hub's clock said {iso}.")
        return self.Out(iso=iso, epoch_ms=now_ms, timezone=args.timezone)

    async def _load(self, name: str) -> tzinfo:
        """Load a time zone. Only known names reach the file system; each is read once."""
        if self._names is None:  # takes 10 ms, and few hubs need it
            self._names = frozenset(await asyncio.to_thread(available_timezones) | {"UTC"})
        if name not in self._names:
            raise _unknown(name, self._names)
        self._zones[name] = zone = ZoneInfo(name)
        return zone


def _unknown(name: str, names: frozenset[str]) -> ToolFailure:
    by_last_part = {known.rpartition("/")[2].casefold(): known for known in sorted(names)}
    near = [by_last_part[name.casefold()]] if name.casefold() in by_last_part else []
    near += [known for known in difflib.get_close_matches(name, sorted(names), n=5) if known not in near]
    return refuse(
        ErrorKind.INVALID_INPUT,
        f"{name!r} is not an IANA time zone. Use a name such as {near[0] if near else 'Europe/Berlin'}, or UTC.",
        near=list(near),
    )


def util_tools(clock: Clock) -> list[Tool[Any, Any, Any]]:
    """Return one of each."""
    return [HashSha256Text(), JsonSelect(), TemplateRender(), TextTruncate(), TimeNow(clock)]
