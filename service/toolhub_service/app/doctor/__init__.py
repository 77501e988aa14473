"""Checks of machine, configuration and stored files for `toolhub doctor`; none changes anything or raises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    OK = "ok"
    WARN = "warn"
    """The hub works, with less."""
    FAIL = "fail"
    """The hub does not start, or is not safe."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    text: str
    advice: str = ""
    """What to do; empty when all is well."""
    disables: tuple[str, ...] = ()
    """Tools that cannot be called because of it."""


def ok(name: str, text: str) -> Finding:
    return Finding(name, State.OK, text)


def warn(name: str, text: str, advice: str, *disables: str) -> Finding:
    return Finding(name, State.WARN, text, advice, disables)


def fail(name: str, text: str, advice: str) -> Finding:
    return Finding(name, State.FAIL, text, advice)


def shown_size(size_bytes: int) -> str:
    """Return a size for people, in the largest unit of which there is at least one."""
    for unit_bytes, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.1f} {unit}"
    return f"{size_bytes} bytes"
