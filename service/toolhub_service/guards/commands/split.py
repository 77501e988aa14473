"""Splits a command line into words as a shell would, without doing anything else that a shell does.

Quotes and backslashes mean what POSIX (XCU 2.2) says. Whatever would make a shell act (operators, expansions, globs,
comments) is refused instead of being passed on as text: the caller assumed a shell, and a silently different meaning
is worse than an error. One pass, linear time.
"""

from __future__ import annotations

from typing import NoReturn

from toolhub_service.domain.errors.failure import ErrorKind, refuse

MAX_COMMAND_CHARS = 32_768

_BLANK = " \t"
_OPERATORS = frozenset(";|&<>()")
_EXPANSIONS = frozenset("$`")
_GLOBS = frozenset("*?[{")
_WORD_START_ONLY = frozenset("~#")
_ESCAPABLE_IN_DOUBLE_QUOTES = frozenset('$`"\\')


def split_command(text: str) -> list[str]:
    """Return the words of a command line. Raises ToolFailure INVALID_INPUT that names what only a shell understands."""
    if len(text) > MAX_COMMAND_CHARS:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The command has {len(text)} characters of at most {MAX_COMMAND_CHARS}: put long content in a file.",
        )
    words = _Splitter(text).words()
    if not words:
        raise refuse(ErrorKind.INVALID_INPUT, "The command is empty: give the name of a command and its arguments.")
    return words


class _Splitter:
    """One pass over one command line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def words(self) -> list[str]:
        found: list[str] = []
        while self._skip_blanks():
            found.append(self._word())
        return found

    def _skip_blanks(self) -> bool:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1
        return self._at < len(self._text)

    def _word(self) -> str:
        start, parts = self._at, list[str]()
        while self._at < len(self._text) and self._text[self._at] not in _BLANK:
            char = self._text[self._at]
            if char == "'":
                parts.append(self._read_single_quotes())
            elif char == '"':
                parts.append(self._read_double_quotes())
            elif char == "\\":
                parts.append(self._read_escape())
            else:
                parts.append(self._plain(char, at_start=self._at == start))
        return "".join(parts)

    def _plain(self, char: str, *, at_start: bool) -> str:
        if char in _OPERATORS:
            self._refuse_shell_syntax(char, "is a shell operator")
        if char in _EXPANSIONS:
            self._refuse_shell_syntax(char, "starts a shell expansion")
        if char in _GLOBS or (at_start and char in _WORD_START_ONLY):
            self._refuse_shell_syntax(char, "is a pattern, a home folder or a comment to a shell")
        return self._take(char)

    def _read_single_quotes(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            self._refuse_unfinished("single quote")
        content = self._text[self._at + 1 : end]
        if any(is_control(char) for char in content):
            self._refuse_control_character()
        self._at = end + 1
        return content

    def _read_double_quotes(self) -> str:
        opened, parts = self._at, list[str]()
        self._at += 1
        while self._at < len(self._text) and (char := self._text[self._at]) != '"':
            if char in _EXPANSIONS:
                self._refuse_shell_syntax(char, "starts a shell expansion, also between double quotes")
            escapes = char == "\\" and self._text[self._at + 1 : self._at + 2] in _ESCAPABLE_IN_DOUBLE_QUOTES
            parts.append(self._read_escape() if escapes else self._take(char))
        if self._at >= len(self._text):
            self._at = opened
            self._refuse_unfinished("double quote")
        self._at += 1
        return "".join(parts)

    def _read_escape(self) -> str:
        if self._at + 1 >= len(self._text):
            self._refuse_unfinished("backslash")
        self._at += 1
        return self._take(self._text[self._at])

    def _take(self, char: str) -> str:
        if is_control(char):
            self._refuse_control_character()
        self._at += 1
        return char

    def _refuse_shell_syntax(self, char: str, what: str) -> NoReturn:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"No shell is used: {char!r} at position {self._at} {what}. Run one command per call, write out what it "
            "should see, and put single quotes around text that is meant literally (or pass argv as an array).",
            position=self._at,
            character=char,
        )

    def _refuse_control_character(self) -> NoReturn:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The command has a line break or another control character near position {self._at}: run one command "
            "per call, on one line.",
            position=self._at,
        )

    def _refuse_unfinished(self, what: str) -> NoReturn:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The {what} at position {self._at} is not finished: close it, or pass argv as an array.",
            position=self._at,
        )


def is_control(char: str) -> bool:
    """Return whether it is a C0 character (except the tab, which is a blank), DEL, C1 or a lone surrogate: no argument
    may contain these."""
    return (char < " " and char != "\t") or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff"
