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
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import re2

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.foreign_text import escape_hidden, is_hidden, on_one_line

# All text of a remote definition, prepared for pattern search: each text on its own lines, each sentence on one line.
#
# Poison can be anywhere that a model reads: descriptions, titles, names of parameters, enum values, defaults, comments
# of a schema ("full-schema poisoning"). So every text is read, keys too, without recursion and up to a limit. Wrapped
# sentences are joined and hidden characters removed, so that patterns can ignore both.

TEXT_MAX_CHARS: Final = 64 * 1024
"""Limit for one definition. The largest of 872 published ones has 7,534."""
PLACE_MAX_CHARS: Final = 120

_SPACES: Final = re.compile(r"\s+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\s*\n(?:\s*\n|\s*(?:[-*•>#]|\d+[.)])\s)\s*")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
# Latin letters in other forms: wide, circled, bold … Only these are replaced by plain ones; folding other characters
# can yield 18 letters each.
_STYLED: Final = re.compile("[\u2100-\u214f\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff]+")
_NAME_SEPARATORS: Final = re.compile(r"[_\-.]+|(?<=[a-z])(?=[A-Z])")


class Text(msgspec.Struct, frozen=True):
    place: str
    """A path such as `inputSchema.properties.path.description`; untrusted, cut."""
    raw: str
    is_name: bool = False
    """Whether it is a key of an object, such as a parameter's name."""


class Document(msgspec.Struct, frozen=True):
    """Every text of a definition as lines."""

    lines: str
    texts: tuple[Text, ...]
    starts: tuple[int, ...]
    """Where each text begins in `lines`."""
    is_whole: bool
    """False: there was more text than is checked."""

    def text_at(self, offset: int) -> Text:
        return self.texts[max(bisect_right(self.starts, offset) - 1, 0)]


def document_of(definition: JsonObject) -> Document:
    """Return the texts of a definition; linear in the text read, which is at most `TEXT_MAX_CHARS`."""
    texts: list[Text] = []
    left = TEXT_MAX_CHARS
    for text in _texts(definition):
        left -= len(text.raw) + 1
        if left < 0:
            return _laid_out(texts, is_whole=False)
        texts.append(text)
    return _laid_out(texts, is_whole=True)


def _laid_out(texts: Sequence[Text], *, is_whole: bool) -> Document:
    starts: list[int] = []
    pieces: list[str] = []
    at = 0
    for text in texts:
        piece = _sentences(text) + "\n"
        starts.append(at)
        pieces.append(piece)
        at += len(piece)
    return Document("".join(pieces), tuple(texts), tuple(starts), is_whole)


def _sentences(text: Text) -> str:
    seen = text.raw
    if not seen.isascii():
        kept = _BEYOND_ASCII.sub(lambda run: "".join(char for char in run.group() if not is_hidden(char)), seen)
        seen = _STYLED.sub(lambda run: unicodedata.normalize("NFKC", run.group()), kept)
    if text.is_name:
        return f"{seen} {_NAME_SEPARATORS.sub(' ', seen)}"
    return "\n".join(_SPACES.sub(" ", sentence) for sentence in _SENTENCE_END.split(seen))


def _texts(definition: JsonObject) -> Iterator[Text]:
    """Yield texts in document order as far as a stack allows: a value's own texts before those of the values after
    it."""
    waiting: list[tuple[str, JsonValue]] = [("", definition)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            yield Text(place, value)
        elif isinstance(value, Mapping):
            for key in value:
                yield Text(_below(place, key), key, is_name=True)
            waiting.extend((_below(place, key), value[key]) for key in reversed(list(value)))
        elif isinstance(value, Sequence):
            waiting.extend((place, entry) for entry in reversed(value))


def _below(place: str, key: str) -> str:
    below = f"{place}.{key[:PLACE_MAX_CHARS]}" if place else key[:PLACE_MAX_CHARS]
    return below if len(below) <= PLACE_MAX_CHARS else "…" + below[-(PLACE_MAX_CHARS - 1) :]


# Texts that must not be in the description of a tool: patterns of tool poisoning, each with its meaning for a person.
#
# A description says what a tool does; text that tells the model what to hide from the user, which files to read first
# or how to treat another tool is an attack, or so badly worded that somebody must look. Sources: Invariant Labs, "MCP
# Security Notification: Tool Poisoning Attacks" (2025) and its experiments; CyberArk, "Poison everywhere" (2025); the
# Damn Vulnerable MCP Server; OWASP LLM01. A finding is serious when no honest catalogue needs such text; others are
# only reported.
#
# RE2, so linear time; a pattern sees one sentence at a time, because `.` ends at a line's end. No counted gaps: they
# make the automaton large.

_MODEL_TAGS: Final = "important|hidden|system|system[_-]?prompt|instructions?|critical|admin|secret[_-]?instructions?"
_PLACEHOLDERS: Final = "secret|assistant|developer|human|prompt|override|rules?|hint|note|warning|attention|thinking"
_SPEAKERS: Final = (
    "system|hidden|secret|admin|emergency|metadata|role|override|assistant|developer|model|agent|ai|llm|safety"
    "|configuration|processing"
)
_SET_ASIDE: Final = r"\b(?:ignor|bypass|skip|disabl|overrid|disregard|circumvent|suspend)(?:e|es|ing)?\b (?:\w+ ){0,2}"
_NOT: Final = r"(?:do not|don'?t|does not|never|must not|should not|without|avoid|refrain from)"
_TELL: Final = (
    r"(?:mention|tell|inform|reveal|disclose|admit|acknowledge|alert|warn|report)(?:ing|s)?|let(?:ting)? .*\bknow"
)
_ORDER: Final = r"(?:must|should|have to|need to|required to|be sure to|please|always|first|then|read and)"
_TAKE: Final = r"(?:read|access|open|cat|load|fetch|retrieve|extract|collect|gather|harvest|dump|steal|look up)(?:ing)?"
_GIVE: Final = r"(?:send|forward|post|upload|submit|transmit|e-?mail|bcc|cc|exfiltrate|leak)(?:ing)?"
_SECRETS: Final = (
    r"(?:credentials?\b|secrets?\b|passwords?\b|api[ _-]?keys?\b|private keys?|ssh keys?|access tokens?|master password"
    r"|id_(?:rsa|ed25519)|\.ssh\b|\.env\b|\.aws\b|mcp\.json|confidential|system prompt|environment variables"
    r"|(?:conversation|chat) history|previous (?:messages|conversation)|\bsystem\.conf|://(?:admin|secrets?|internal))"
)
_KEPT_AT: Final = (
    r"(?:~|\$HOME|/root|/home/[a-z]+)/\.[a-z]|\bid[_ ](?:rsa|ed25519|ecdsa|dsa)\b|/etc/(?:passwd|shadow|sudoers)\b"
    r"|/proc/self/environ|\bmcp\.json\b|claude_desktop_config|\.git-credentials|authorized_keys|\bwallet\.dat\b"
)


class Rule(NamedTuple):
    pattern: Any
    """Compiled by RE2, which has no types."""
    message: str
    """What was found, as it reads after the place: `description: it tells …`."""
    is_serious: bool


def _rule(message: str, *patterns: str, is_serious: bool = True) -> Rule:
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return Rule(re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options), message, is_serious)


RULES: Final[tuple[Rule, ...]] = (
    _rule("a comment that is not shown to people", r"<!--", r"\[(?://|comment|_)\]: *(?:#|<>)"),
    _rule(
        "markup that speaks to the model",
        rf"</? ?(?:{_MODEL_TAGS}) ?>",
        rf"</(?:{_PLACEHOLDERS}) ?>",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext)",
        r"\[/?INST\]|<</?SYS>>",
        rf"(?:^|[\s.])\[?(?:(?:{_SPEAKERS})[ _-]){{1,3}}(?:directive|instructions?|override|prompt|command"
        r"|protocol)\]? ?:",
        r"(?:(?m:^)[\W_]*|[.\]] ?)(?:system|assistant) ?: ",
        r"\b(?:act|behave|respond|operate) as ?:|\bact as (?:an? |the )?(?:unrestricted|root|admin\w*|superuser)\b",
    ),
    _rule(
        "it tells the model to keep something from the user",
        rf"\b{_NOT} (?:\w+ ){{0,2}}(?:{_TELL})\b.*\b(?:user|human|person|anyone|that you|that it|this|it)\b",
        r"\b(?:present|format|disguise|make) (?:it|them|this|the \w+) .*(?:as if|look like|as though|appear)",
        r"\b(?:silently|secretly|covertly|quietly|discreetly) (?:\w+ )?(?:send|read|access|forward|copy|call|include"
        r"|log|upload|add|use|change|replace|append|execute|run|invoke)\b",
    ),
    _rule(
        "it tells the model to set its instructions aside",
        r"\b(?:ignore|disregard|forget|override|bypass) (?:\w+ ){0,3}(?:previous|prior|above|earlier|existing|other"
        r"|your|system|all|safety) (?:\w+ ){0,2}"
        r"(?:instruction|prompt|rule|guideline|direction|polic|constraint|command)",
        r"\byou are now (?:a|an|in|the|no longer)\b|\bnew (?:system )?instructions?:",
        rf"{_SET_ASIDE}(?:safety|security|content[ -]filter\w*|guardrails?|restrictions?|safeguards?|moderation"
        r"|polic(?:y|ies))\b",
        r"\btrust (?:all|any|every) (?:\w+ ){0,2}(?:input|commands?|quer\w+|users?|requests?|output|content)\b",
        r"\b(?:unrestricted access|full system access|without (?:any )?(?:restrictions|security checks))\b",
    ),
    _rule(
        "it tells the model to read or hand over secrets",
        rf"\b{_ORDER} ?(?:\w+ ){{0,3}}{_TAKE}\b.*(?:{_SECRETS}|{_KEPT_AT})",
        rf"(?:before|when|while|whenever|after|prior to) .*\b{_TAKE}\b.*(?:{_KEPT_AT})",
        rf"\b(?:include|pass|append|attach|put|insert|paste|add) .*{_SECRETS}.*"
        r"\b(?:in|into|as|to|with) (?:your |the )?(?:response|answer|reply|output|['\"`]|sidenote)",
        rf"(?m:^)(?:{_TAKE}|{_GIVE}) (?:the )?(?:content|contents) (?:of )?.*(?:{_KEPT_AT})",
        r"\b(?:include|pass|append|attach|send|provide) (?:\w+ ){0,2}(?:complete|full|entire|whole) (?:\w+ )?"
        r"(?:conversation|chat|messages?|system prompt)\b",
    ),
    _rule(
        "it tells the model to send data somewhere",
        rf"\b(?:must|always|should|also|have to|need to) (?:\w+ ){{0,2}}{_GIVE} .*(?:https?://|[\w.+-]+@[\w-]+\.\w)",
        rf"\b{_GIVE} (?:all|every|each|any|the (?:whole|full|entire)) .*\b(?:conversation|messages?|e-?mails?|files?"
        r"|history|results?|data) .*\bto [`'\"]?(?:https?://|[\w.+-]+@[\w-]+\.\w)",
    ),
    _rule(
        "it tells the model how to treat other tools",
        r"\b(?:before|prior to|instead of) (?:using|calling|invoking|running) (?:any|every|all)(?: other| of the)?"
        r" tools?\b",
        r"\b(?:when|while|if|as long as|once) this tool is (?:available|present|installed|enabled|loaded|connected)",
        r"\b(?:side )?effects? on the .*\btool\b",
        r"\b(?:do not|don'?t|never) (?:use|call|invoke) (?:any|the) other tools?\b",
        r"\b(?:for|before|with) (?:any|every|each|all) (?:requests?|questions?|quer(?:y|ies)|messages?|responses?)\b"
        r".*\b(?:call|use|invoke|run) (?:this|it)\b",
    ),
    _rule(
        "a command that fetches and runs code",
        r"\b(?:curl|wget)\b.*\| *(?:sudo )?(?:ba|z|da)?sh\b",
        r"\bbase64 (?:-d|--decode)\b.*\| *(?:sudo )?(?:(?:ba|z|da)?sh|python3?|perl)\b",
    ),
    _rule("it names where credentials are kept", _KEPT_AT, is_serious=False),
    _rule(
        "it tells the model what to call first",
        r"\b(?:before|prior to) (?:using|calling|invoking|running) this (?:tool|function)\b.*\b(?:must|always|first"
        r"|call|use|run|read)\b",
        r"\bmust (?:first |always )?(?:call|use|run|invoke)\b.*\b(?:before|first|tool)\b",
        is_serious=False,
    ),
    _rule(
        "it speaks of leaving checks out",
        rf"{_SET_ASIDE}(?:validation|access controls?|authori[sz]ation|authentication|confirmation|permissions?"
        r"|approval)\b",
        is_serious=False,
    ),
    _rule("a long run of encoded data", r"(?:^|[^A-Za-z0-9+/,])[A-Za-z0-9+/]{128}", is_serious=False),
    _rule("an image that is loaded when the text is shown", r"!\[.*\]\(https?://", is_serious=False),
    _rule("letters of several scripts in one word", r"[a-z]\p{Cyrillic}|\p{Cyrillic}[a-z]", is_serious=False),
)

ORDER_RULE: Final = _rule(
    "it tells the model how to treat other tools",
    r"\b(?:always|must) (?:call|use|invoke|run) this (?:tool|function) (?:first|before)\b",
)
"""Serious unless its sentence names tools of the same source only: an order among its own is what a source may ask."""
_QUOTED_NAME: Final = re.compile(r"(?<!\w)[`'\"‘“]([A-Za-z_][A-Za-z0-9_. -]{1,127})[`'\"’”]")

NAME_RULE: Final = _rule("a name that asks for secrets", _KEPT_AT, r"\bcontents? from reading\b|\bssh id\b")
"""Matched against names of parameters, which should contain neither paths nor instructions."""


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
        (*(() if document.is_whole else (cut,)), *_hidden(document), *_matches(document, siblings), *_sized(document))
    )
    return tuple(sorted(found, key=lambda finding: not finding.is_serious)[:_FINDINGS_MAX])


def _hidden(document: Document) -> Iterator[Finding]:
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


def _matches(document: Document, siblings: Collection[str]) -> Iterator[Finding]:
    for rule in RULES:
        found = rule.pattern.search(document.lines)
        if found is not None:
            yield _match(document.text_at(found.start()), rule, found.group())
    for found in ORDER_RULE.pattern.finditer(document.lines):
        start = document.lines.rfind("\n", 0, found.start()) + 1
        named = _QUOTED_NAME.findall(document.lines, start, document.lines.index("\n", found.end()))
        is_serious = not named or any(name not in siblings for name in named)
        yield _finding(document.text_at(found.start()), ORDER_RULE.message, found.group(), is_serious)
    for text in document.texts:
        if text.is_name and len(text.raw) > 5:
            found = NAME_RULE.pattern.search(f"{text.raw} {text.raw.replace('_', ' ')}")
            if found is not None:
                yield _match(text, NAME_RULE, found.group())


def _sized(document: Document) -> Iterator[Finding]:
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
