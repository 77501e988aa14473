"""From the name that a remote tool bears to the name it has in the hub.

MCP lets a server name its tools almost as it likes (SEP-986 only recommends a grammar); the hub's names are
`source/path.verb`. What the grammar has no place for is spelled out, never dropped, so that no two names become one by
losing what tells them apart: ASCII becomes `_`, anything else its code point (`u641c`), which makes hidden characters
plain to see. Two names that still come to read alike are the caller's to notice, by `registry.names.skeleton`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from toolhub_service.adapters.shortening import one_line
from toolhub_service.domain.errors import HubFailure
from toolhub_service.registry.names import NAME_MAX_CHARS, check_name

OWN_NAME_MAX_CHARS: Final = 256
"""A longer name of a remote tool is refused: nobody writes it by hand, and every call would carry it."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_ALLOWED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGEST_CHARS: Final = 8


class Unnamed(Exception):
    """Something has no name by which the hub could know it; `problem` is a sentence for operators."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def full_name(source: str, own_name: str) -> str:
    """`source/path.verb` for a tool that its source calls `own_name` (not empty): at most 128 characters."""
    path = own_name if _PLAIN.fullmatch(own_name) else ".".join(_word(word) for word in own_name.split("."))
    room = NAME_MAX_CHARS - len(source) - 1
    if len(path) > room:
        digest = hashlib.sha256(own_name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        path = f"{path[: room - _DIGEST_CHARS - 1].rstrip('.-')}_{digest}"
    return f"{source}/{path}"


def known_name(source: str, own_name: str, what: str) -> str:
    """`full_name`, as the hub can know it. `what` begins the sentence, such as `A tool`. Raises Unnamed."""
    name = full_name(source, own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        raise Unnamed(f"{what} named `{one_line(own_name, 80)}` was left out: {refused.message}.") from refused
    return name


def _word(word: str) -> str:
    """One of the words between dots."""
    spelled = "".join(char if char in _ALLOWED else _spelled(char) for char in word)
    return f"_{spelled}" if not spelled or spelled[0] == "-" else spelled


def _spelled(char: str) -> str:
    return "_" if char.isascii() else f"u{ord(char):04x}"
