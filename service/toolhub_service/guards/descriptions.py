"""Checks what a remote source says of a tool, before any model reads it.

Measured on public data (tests/unit/guards/test_descriptions.py): of the eight tools of the Damn Vulnerable MCP Server
and of Invariant's experiments whose poison is in their text all have serious findings, also with the pseudo-tags taken
out; of 872 real tools of two published catalogues none has, of 7,159 of five research sets none. The rules were written
with those eight in view, and with ten of another public set (cisco-ai-defense/mcp-scanner, prompt-injection; 2 of 10
before). Of six orders in a third set that no rule was written from (harryc295/tool-poisoning-bench) four are found; a
friendly request without a word of command passes. So this is a tripwire, not a proof. Better worded attacks are stopped
by the pin, and because nothing in a description grants anything. The check takes about 0.3 ms, once for each new
definition.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.definition_text import TEXT_MAX_CHARS, Document, Text, document_of
from toolhub_service.guards.description_rules import NAME_RULE, ORDER_RULE, QUOTED_NAME, RULES, Rule
from toolhub_service.guards.foreign_text import escape_hidden, is_hidden, on_one_line

LONG_CHARS: Final = 4_000
"""A longer text is reported; the longest description of 872 published ones has 3,032."""
TOO_LONG_CHARS: Final = 16_000
_DESCRIPTIONS: Final = frozenset({"description", "description.beginning"})
_EXCERPT_CHARS: Final = 100
_FINDINGS_MAX: Final = 20
_NOT_PLAIN: Final = re.compile(r"[^\n\r\t -~]")
_OUT_OF_SIGHT: Final = re.compile(r"(?:[ \t]{100}|(?:[ \t]*\n){20})[ \t\n]*\S")
_JOINERS: Final = "\u200c\u200d"
_SELECTORS: Final = "\ufe0e\ufe0f"
_MARKS: Final = "\u200e\u200f\u061c"
_KEYCAPS: Final = frozenset("0123456789#*")
# Blanks of unusual width, and runs of those that honest texts use singly: both can carry a message.
_ODD_SPACES: Final = re.compile("[\u1680\u2000-\u200a\u205f]|[\u00a0\u202f\u3000]{2}")
_ODD_SPACES_MAX: Final = 8


class Finding(msgspec.Struct, frozen=True):
    message: str
    """One sentence for a person, with hidden characters escaped; quotes what was found."""
    is_serious: bool
    """A definition with such a finding is not trusted on first use."""


def check_definition(definition: JsonObject, siblings: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return what looks wrong with a definition in its source's own words, serious findings first; at most twenty.

    `siblings`: names and titles of tools that only this source has. Linear in the text, of which 64 Ki
    characters are checked; more is a serious finding of its own.
    """
    document = document_of(definition)
    cut = Finding(f"It has more than {TEXT_MAX_CHARS:,} characters of text; the rest was not checked.", True)
    found = dict.fromkeys(
        (
            *(() if document.is_whole else (cut,)),
            *find_hidden_text(document),
            *find_rule_matches(document, siblings),
            *find_long_texts(document),
        )
    )
    return tuple(sorted(found, key=lambda finding: not finding.is_serious)[:_FINDINGS_MAX])


def find_hidden_text(document: Document) -> Iterator[Finding]:
    for text in document.texts:
        at = _first_hidden(text.raw)
        if at is not None:
            what = "an ANSI escape sequence" if text.raw[at] in "\x1b\x9b" else "a character that is not shown"
            yield _finding(text, what, text.raw[max(at - 20, 0) : at + 20], is_serious=True)
        if not text.raw.isascii() or len(text.raw) > 20:
            hidden = _OUT_OF_SIGHT.search(text.raw)
            if hidden is not None:
                yield _finding(text, "text moved out of sight by white space", text.raw[hidden.end() - 1 :], True)
        if not text.raw.isascii() and (odd := _ODD_SPACES.findall(text.raw)):
            at = text.raw.index(odd[0])
            excerpt = text.raw[max(at - 20, 0) : at + 20]
            yield _finding(text, f"{len(odd)} blanks of unusual width", excerpt, len(odd) > _ODD_SPACES_MAX)


def find_rule_matches(document: Document, siblings: Collection[str]) -> Iterator[Finding]:
    for rule in RULES:
        found = rule.pattern.search(document.lines)
        if found is not None:
            yield _match(document.text_at(found.start()), rule, found.group())
    for found in ORDER_RULE.pattern.finditer(document.lines):
        start = document.lines.rfind("\n", 0, found.start()) + 1
        named = QUOTED_NAME.findall(document.lines, start, document.lines.index("\n", found.end()))
        is_serious = not named or any(name not in siblings for name in named)
        yield _finding(document.text_at(found.start()), ORDER_RULE.message, found.group(), is_serious)
    for text in document.texts:
        if text.is_name and len(text.raw) > 5:
            found = NAME_RULE.pattern.search(f"{text.raw} {text.raw.replace('_', ' ')}")
            if found is not None:
                yield _match(text, NAME_RULE, found.group())


def find_long_texts(document: Document) -> Iterator[Finding]:
    for text in document.texts:
        if len(text.raw) > LONG_CHARS:
            # The description is shown up to a bound; texts elsewhere have no reason to be long.
            is_serious = len(text.raw) > TOO_LONG_CHARS and text.place not in _DESCRIPTIONS
            yield _finding(text, f"{len(text.raw):,} characters of text", text.raw, is_serious)


def _first_hidden(text: str) -> int | None:
    """Return the position of the first hidden character; joiners and selectors count only where no script and no symbol
    needs them."""
    for found in _NOT_PLAIN.finditer(text):
        at = found.start()
        if is_hidden(text[at]) and not _is_needed(text, at):
            return at
    return None


def _is_needed(text: str, at: int) -> bool:
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    char = text[at]
    if char in _SELECTORS:
        return _is_pictured(before) or (before in _KEYCAPS and after == "\u20e3")
    if char in _JOINERS:
        return _joins(before) and _joins(after)
    if char in _MARKS:
        return any("\u0590" <= near <= "\u08ff" and near not in _MARKS for near in text[max(at - 40, 0) : at + 40])
    return False


def _is_pictured(char: str) -> bool:
    """Return whether a variation selector can choose how the character is drawn: symbols and marks beyond ASCII, such
    as ☎ or ‼."""
    return bool(char) and not char.isascii() and unicodedata.category(char)[0] in "SP"


def _joins(char: str) -> bool:
    return bool(char) and not char.isascii() and (char in _SELECTORS or not is_hidden(char))


def _match(text: Text, rule: Rule, excerpt: str) -> Finding:
    return _finding(text, rule.message, excerpt, rule.is_serious)


def _finding(text: Text, what: str, excerpt: str, is_serious: bool) -> Finding:
    quoted = on_one_line(excerpt[:_EXCERPT_CHARS])
    return Finding(f"{escape_hidden(text.place)}: {what}: “{quoted}”", is_serious)
