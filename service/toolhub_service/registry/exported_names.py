"""Names that every model interface takes, and the way back from them.

Interfaces accept `^[a-zA-Z0-9_-]{1,64}$`, so `core/fs.readText` becomes `core__fs_readText`: the slash gives two
underscores, a dot one. A name that would be too long is cut and ends in eight digits of its own sha256; so does every
one of several names that would fall together, with more digits where eight do not part them. The outcome depends on the
set of names only, never on their order.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

EXPORTED_MAX_CHARS: Final = 64
_SUFFIX_DIGITS: Final = (8, 16, 32)
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class ExportedNames:
    """A two-way map over a set of tool names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._exported = {name: plain_name(name) for name in names}
        for digits in _SUFFIX_DIGITS:
            uses = Counter(self._exported.values())
            for name, short in self._exported.items():
                if uses[short] > 1:
                    self._exported[name] = _marked(name, digits)
        self._original = {exported: name for name, exported in self._exported.items()}

    def exported(self, name: str) -> str:
        """The exported name of a tool of the set. Raises KeyError for another one."""
        return self._exported[name]

    def original(self, exported: str) -> str | None:
        """The tool behind an exported name; None when there is none."""
        return self._original.get(exported)


def plain_name(name: str) -> str:
    """The exported name of a tool that falls together with no other."""
    short = _spelled(name)
    return short if len(short) <= EXPORTED_MAX_CHARS else _marked(name, _SUFFIX_DIGITS[0])


def _spelled(name: str) -> str:
    return _FOREIGN.sub("_", name.replace("/", "__"))


def _marked(name: str, digits: int) -> str:
    suffix = hashlib.sha256(name.encode()).hexdigest()[:digits]
    return f"{_spelled(name)[: EXPORTED_MAX_CHARS - digits - 1]}_{suffix}"
