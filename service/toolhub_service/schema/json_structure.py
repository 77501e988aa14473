"""The amount of structure in a JSON text, counted before a parser creates objects from it.

A parser creates its objects in one step that nothing interrupts: 4 MiB can be two million arrays, for which every
other call would wait a second. Counting takes a few milliseconds: first all signs, strings included, each in one
scan; only a text with too many of them is counted again without its strings, slice by slice, until the limit is
exceeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue

_SLICE_BYTES: Final = 64 * 1024
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


class Structure(NamedTuple):
    """Number of signs outside of strings."""

    containers: int
    """Arrays and objects."""
    members: int
    """Members of all objects."""
    separators: int
    """Commas: the number of values is at most this plus one per container."""

    def is_within(self, most: Structure) -> bool:
        return (
            self.containers <= most.containers and self.members <= most.members and self.separators <= most.separators
        )


MOST: Final = Structure(containers=100_000, members=250_000, separators=500_000)
"""Values in one call's arguments: what orjson parses in about 50 ms, and more than a table of 4 MiB has."""
LITTLE: Final = Structure(containers=1_000, members=4_000, separators=8_000)
"""Values that are parsed, checked and written in about 5 ms, however long the texts are."""


def has_little(data: bytes) -> bool:
    """Return whether the text certainly has so little structure that it can be read at once; False is inconclusive."""
    return _signs(data).is_within(LITTLE)


def has_many_values(value: JsonValue, most: int = LITTLE.separators) -> bool:
    """Return whether the value contains more than `most` values; stops counting there."""
    pending, values = [value], 0
    while pending:
        container = pending.pop()
        if isinstance(container, Mapping):
            items: Iterable[JsonValue] = container.values()
        elif isinstance(container, list | tuple):
            items = container
        else:
            continue
        values += len(container)
        if values > most:
            return True
        pending.extend(items)
    return False


def bound_structure(data: bytes, most: Structure = MOST) -> None:
    """Raises ToolFailure INVALID_INPUT, reason `too_many_values`, for a text with more than `most` values."""
    if _signs(data).is_within(most):
        return
    containers = members = separators = 0
    for outside in outside_strings(data):
        signs = _signs(outside)
        containers += signs.containers
        members += signs.members
        separators += signs.separators
        if not Structure(containers, members, separators).is_within(most):
            raise _too_many(most)


def lexical_depth(data: bytes, enough: int) -> int:
    """Return the deepest nesting of brackets outside strings; stops once it exceeds `enough`."""
    depth = deepest = 0
    for outside in outside_strings(data):
        for bracket in outside.translate(None, _NOT_BRACKETS):
            if bracket in b"[{":
                depth += 1
                if depth > deepest:
                    deepest = depth
                    if deepest > enough:
                        return deepest
            else:
                depth -= 1
    return deepest


def outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield the text without its strings, in pieces from at most 64 KiB of it."""
    at, is_inside = 0, 0
    while at < len(data):
        piece = data[at : at + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # so that no escape is split
            piece = data[at : at + len(piece) + 1]
        at += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside = (is_inside + len(parts) - 1) % 2


def _signs(data: bytes) -> Structure:
    return Structure(data.count(b"[") + data.count(b"{"), data.count(b":"), data.count(b","))


def _too_many(most: Structure) -> ToolFailure:
    message = (
        f"The JSON has too many small parts: at most {most.containers:,} arrays and objects, {most.members:,} members "
        f"and {most.separators:,} items are read in one call. Send it as one text, upload it as an artifact and refer "
        "to that, or split it into several calls."
    )
    details = {"reason": "too_many_values", **most._asdict()}
    return ToolFailure(ToolError(ErrorKind.INVALID_INPUT, message, details=details))
