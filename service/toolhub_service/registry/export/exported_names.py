"""Names that every model interface accepts, and the map back from them.

Interfaces accept `^[a-zA-Z0-9_-]{1,64}$`, so `core/fs.readText` becomes `core__fs_readText`: the slash gives two
underscores, a dot one. A name that would be too long is cut and ends in eight digits of its own sha256; so does every
one of several names that would collide, with more digits where eight do not distinguish them. The outcome depends on
the set of names only, never on their order.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

EXPORTED_MAX_CHARS: Final = 64
DESCRIBE_TOOL: Final = "core/tool.describe"
"""Answers the whole description of a tool, where an interface limits it."""
MCP_MAX_CHARS: Final = 60
"""Cursor counts the server's name, too; Claude Code allows 64."""
_SUFFIX_DIGITS: Final = (8, 16, 32)
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class ExportedNames:
    """A two-way map over a set of tool names, of at most `max_chars` characters each."""

    def __init__(
        self,
        names: Iterable[str],
        max_chars: int = EXPORTED_MAX_CHARS,
        *,
        unprefixed: Iterable[str] = (),
        reserved: Collection[str] = (),
    ) -> None:
        """`unprefixed` are exported without their namespace, unless that name is another tool's or one of `reserved`.

        Their prefixed names are accepted, too.
        """
        self._exported = {name: plain_name(name, max_chars) for name in names}
        for digits in _SUFFIX_DIGITS:
            uses = Counter(self._exported.values())
            for name, short in self._exported.items():
                if uses[short] > 1:
                    self._exported[name] = mark_name(name, digits, max_chars)
        self._original = {exported: name for name, exported in self._exported.items()}
        bare = {name: spell_name(name.partition("/")[2]) for name in unprefixed}
        uses = Counter([*bare.values(), *self._original, *reserved])
        # Neither tool gets a name that both could have: a server must not take over the name of another's tool.
        self.prefixed = tuple(
            sorted(name for name, short in bare.items() if uses[short] > 1 or not 0 < len(short) <= max_chars)
        )
        """The ones of `unprefixed` that keep their prefix."""
        short_names = {name: short for name, short in bare.items() if name not in set(self.prefixed)}
        self._exported |= short_names
        self._original |= {short: name for name, short in short_names.items()}

    def exported_name(self, name: str) -> str:
        """Return the exported name of a tool of the set. Raises KeyError for another one."""
        return self._exported[name]

    def original(self, exported: str) -> str | None:
        """Return the tool behind an exported name; None when there is none."""
        return self._original.get(exported)


def tools_by_exported_name(tools: Iterable[str]) -> dict[str, str]:
    """Return each tool by every name that a model interface or an MCP client may have been given for it.

    The names do not depend on the other tools. A name that may mean two tools is left out.
    """
    found: dict[str, str] = {}
    shared = set()
    for tool in tools:
        for name in exported_names(tool):
            if found.setdefault(name, tool) != tool:
                shared.add(name)
    return {name: tool for name, tool in found.items() if name not in shared}


def exported_names(tool: str) -> set[str]:
    """Return every name that a model interface or an MCP client may have been given for a tool."""
    lengths = (EXPORTED_MAX_CHARS, MCP_MAX_CHARS)
    marked = (mark_name(tool, digits, length) for digits in _SUFFIX_DIGITS for length in lengths)
    return {*(plain_name(tool, length) for length in lengths), *marked}


def plain_name(name: str, max_chars: int = EXPORTED_MAX_CHARS) -> str:
    """Return the exported name of a tool whose name collides with no other."""
    short = spell_name(name)
    return short if len(short) <= max_chars else mark_name(name, _SUFFIX_DIGITS[0], max_chars)


def spell_name(name: str) -> str:
    return _FOREIGN.sub("_", name.replace("/", "__"))


def mark_name(name: str, digits: int, max_chars: int) -> str:
    suffix = hashlib.sha256(name.encode()).hexdigest()[:digits]
    return f"{spell_name(name)[: max_chars - digits - 1]}_{suffix}"
