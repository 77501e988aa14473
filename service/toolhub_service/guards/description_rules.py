"""Texts that must not be in the description of a tool: patterns of tool poisoning, each with its meaning for a person.

A description says what a tool does; text that tells the model what to hide from the user, which files to read first
or how to treat another tool is an attack, or so badly worded that somebody must look. Sources: Invariant Labs, "MCP
Security Notification: Tool Poisoning Attacks" (2025) and its experiments; CyberArk, "Poison everywhere" (2025); the
Damn Vulnerable MCP Server; OWASP LLM01. A finding is serious when no honest catalogue needs such text; others are
only reported.

RE2, so linear time; a pattern sees one sentence at a time, because `.` ends at a line's end. No counted gaps: they
make the automaton large.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import re2

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
QUOTED_NAME: Final = re.compile(r"(?<!\w)[`'\"‘“]([A-Za-z_][A-Za-z0-9_. -]{1,127})[`'\"’”]")

NAME_RULE: Final = _rule("a name that asks for secrets", _KEPT_AT, r"\bcontents? from reading\b|\bssh id\b")
"""Matched against names of parameters, which should contain neither paths nor instructions."""
