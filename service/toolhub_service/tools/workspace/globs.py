"""Globs over paths with `/`: `*`, `?`, `[…]`, `{a,b}` and `**` for any number of folders, as a linear-time matcher.

They are translated to RE2, so that no pattern can make a match slow (fnmatch has neither braces nor `**`). A pattern
without `/` is matched with the last name; a leading `**/` also matches no folder at all.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a predicate on relative paths. Raises ToolFailure INVALID_INPUT for an invalid pattern."""
    try:
        matcher = re2.compile(_glob_to_re2(pattern), _OPTIONS)
    except re2.error:
        raise _unreadable() from None
    if "/" in pattern:
        return lambda path: matcher.fullmatch(path) is not None
    return lambda path: matcher.fullmatch(path.rpartition("/")[2]) is not None


def _glob_to_re2(pattern: str) -> str:
    out: list[str] = []
    braces = 0
    at = 0
    while at < len(pattern):
        part, at = _next_part(pattern, at)
        if part == "{":
            braces += 1
        elif part == "}" and braces:
            braces -= 1
        elif part == "}" or (part == "," and not braces):
            out.append(re2.escape(part))
            continue
        out.append(_SPELLED.get(part) or _other_spelling(part))
    if braces:
        raise _unreadable()
    return "".join(out)


_SPELLED = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def _next_part(pattern: str, at: int) -> tuple[str, int]:
    """Return the next part and the index of the one after it."""
    for known in ("**/", "**"):
        if pattern.startswith(known, at):
            return known, at + len(known)
    if pattern[at] == "[":
        # A `]` right after `[` or `[!` is a member.
        end = pattern.find("]", at + (3 if pattern.startswith("[!", at) else 2))
        if end > 0:
            return pattern[at : end + 1], end + 1
    return pattern[at], at + 1


def _other_spelling(part: str) -> str:
    if len(part) == 1:
        return str(re2.escape(part))
    negated = part[1] == "!"
    members = part[2 if negated else 1 : -1].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
    # `^` would negate and `&&` intersect; a class never matches the slash, as in a shell.
    members = members.replace("^", r"\^").replace("&", r"\&").replace("/", "")
    if not members:
        raise _unreadable()
    return f"[{'^/' if negated else ''}{members}]"


def _unreadable() -> ToolFailure:
    message = 'The glob cannot be read. Use *, ?, [abc], {a,b} and ** such as "**/*.{md,txt}".'
    return refuse(ErrorKind.INVALID_INPUT, message)
