"""The meaning of `allowed-tools` in a SKILL.md: it narrows what the skill's calls may use, and grants nothing.

Its words are those of one client, whose tools have their own names; a few of them have an obvious counterpart in the
hub. Full names and globs of the hub are used unchanged. Any other word allows nothing and causes a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

_COUNTERPARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Read": ("core/fs.readText", "core/fs.stat"),
    "NotebookRead": ("core/fs.readText",),
    "LS": ("core/fs.listDir", "core/fs.stat"),
    "Glob": ("core/fs.findFiles",),
    "Grep": ("core/fs.searchText",),
    "Write": ("core/fs.writeText",),
    "Edit": ("core/fs.editText",),
    "MultiEdit": ("core/fs.editText",),
    "WebFetch": ("core/web.fetch", "core/http.fetchText", "core/http.fetchJson", "core/http.head"),
    "WebSearch": ("core/web.search",),
}
_LIMITED: Final = re.compile(r"^([A-Za-z]+)\((.*)\)$")
_MCP: Final = re.compile(r"^mcp__([a-z0-9][a-z0-9_-]*?)(?:__([A-Za-z0-9_.*-]+))?$")
_OURS: Final = re.compile(r"^[a-z0-9*][a-z0-9_*?-]*/[A-Za-z0-9_.*?-]+$")
_SHOWN_CHARS: Final = 80


def allowed_globs(words: Sequence[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return globs over full names, None where nothing is declared, and a sentence about each word that allows
    nothing."""
    if not words:
        return None, ()
    globs: dict[str, None] = {}
    warnings: list[str] = []
    for word in words:
        found = _globs(word)
        globs |= dict.fromkeys(found)
        if not found:
            warnings.append(_warning(word))
    return tuple(globs), tuple(warnings)


def is_allowed(name: str, wanted: Sequence[str], allowed: Sequence[str] | None) -> bool:
    """Return whether the sidecar wants a tool and SKILL.md, if it restricts tools, allows it."""
    if not any(fnmatchcase(name, glob) for glob in wanted):
        return False
    return allowed is None or any(fnmatchcase(name, glob) for glob in allowed)


def _globs(word: str) -> tuple[str, ...]:
    if word in _COUNTERPARTS:
        return _COUNTERPARTS[word]
    if _OURS.match(word):
        return (word,)
    if remote := _MCP.match(word):
        return (f"{remote[1]}/{remote[2] or '*'}",)
    return ()


def _warning(word: str) -> str:
    shown = word if len(word) <= _SHOWN_CHARS and word.isprintable() else f"{ascii(word[:_SHOWN_CHARS])[1:-1]}…"
    if limited := _LIMITED.match(word):
        name = limited[1]
        if name in _COUNTERPARTS:
            tools = ", ".join(_COUNTERPARTS[name])
            return (
                f"`allowed-tools` has `{shown}`, which allows nothing here: limits in parentheses are a matter of the "
                f"policy. Write {tools}, and limit them there."
            )
        if name == "Bash":
            return (
                f"`allowed-tools` has `{shown}`, which allows nothing here: write core/exec.run, and name the command "
                "in the policy."
            )
    return f"`allowed-tools` has `{shown}`, which is no tool of this hub and allows nothing; write full names or globs."
