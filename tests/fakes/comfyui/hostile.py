"""Outputs that a hostile server may claim; for `comfy.claim("SaveImage", {"images": …})`."""

from __future__ import annotations

from typing import Any


def file(filename: Any, subfolder: Any = "", kind: Any = "output") -> dict[str, Any]:
    """One output in the shape of SaveImage's."""
    return {"filename": filename, "subfolder": subfolder, "type": kind}


HOSTILE_FILES: list[Any] = [
    file("../../../etc/passwd"),
    file("/etc/passwd"),
    file("..\\..\\windows\\win.ini"),
    file("passwd", "../../../../etc"),
    file("a\0.png"),
    file("x" * 10_240 + ".png"),
    file("evil.png?type=input&x=", "a&subfolder=b"),
    file("%2e%2e%2fevil.png"),
    file("img.png", "", "input"),
    file("img.png", "", "no-such-type"),
    file("line\r\nX-Injected: 1.png"),
    file(7),
    file(None),
    {"filename": "no-type.png"},
    {},
    "a string.glb",
    None,
    [],
]
"""Names that climb, end early, are too long or are none; items that are no files."""

MANY_FILES: list[Any] = [file(f"img_{number:05}_.png") for number in range(1, 10_001)]
"""Ten thousand, none of which is there."""
