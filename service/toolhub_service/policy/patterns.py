"""Globs over names: `*` matches any run of characters (also `/`), everything else matches itself.

Greedy search of the pieces between the stars: linear in the name, so that no pattern can cause a hang.
"""

from __future__ import annotations

from collections.abc import Iterable


class Pattern:
    """One glob, split once."""

    __slots__ = ("_first", "_last", "_middle", "text")

    def __init__(self, text: str) -> None:
        pieces = text.split("*")
        self.text = text
        self._first = pieces[0]
        self._middle = tuple(piece for piece in pieces[1:-1] if piece)
        self._last: str | None = pieces[-1] if len(pieces) > 1 else None

    @property
    def is_exact(self) -> bool:
        return self._last is None

    def matches(self, name: str) -> bool:
        if self._last is None:
            return name == self._first
        end = len(name) - len(self._last)
        at = len(self._first)
        # `at > end`: in `ab*ba` the two ends must not share letters of `aba`.
        if at > end or not name.startswith(self._first) or not name.endswith(self._last):
            return False
        for piece in self._middle:
            # The first match is the right one: it leaves most of the name to the following pieces.
            found = name.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class Patterns:
    """Several globs; a name matches when one of them matches it."""

    __slots__ = ("_all",)

    def __init__(self, texts: Iterable[str]) -> None:
        self._all = tuple(Pattern(text) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._all)

    def match(self, name: str) -> Pattern | None:
        """Return the first glob that matches."""
        for pattern in self._all:
            if pattern.matches(name):
                return pattern
        return None

    def names(self, name: str) -> bool:
        """Return whether the name itself is listed, not only covered by a star."""
        return any(pattern.is_exact and pattern.text == name for pattern in self._all)

    def __str__(self) -> str:
        return ", ".join(pattern.text for pattern in self._all)
