"""Steps of a JSON Pointer (RFC 6901), in which `~` and `/` are written `~0` and `~1`."""

from __future__ import annotations


def step_of(name: str) -> str:
    """A property's name as it stands in a pointer, with the slash before it."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def names_of(pointer: str) -> list[str]:
    """The names that a pointer such as `/a/b~1c` leads through; it begins with a slash."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]
