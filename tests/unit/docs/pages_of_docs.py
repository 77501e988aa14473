"""The Markdown of the repository, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GENERATED = {"cli.md", "configuration.md", "errors.md", "faces.md", "metrics.md", "original-names.md"}
GENERATED |= {"promises.md", "skill-manifest.md", "tools.md"}

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def markdown() -> list[Path]:
    """Every page that people read."""
    places = [DOCS, ROOT / "examples", ROOT / "clients", ROOT / "deploy"]
    found = [*ROOT.glob("*.md"), *(path for place in places for path in place.rglob("*.md"))]
    return sorted(path for path in found if "node_modules" not in path.parts)


def fences(path: Path, *languages: str) -> Iterator[str]:
    """The code blocks in one of the languages."""
    for language, body in _FENCE.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield body


def prose(path: Path) -> str:
    """The text without its code blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def inline_code(path: Path) -> list[str]:
    return _CODE.findall(prose(path))


def links(path: Path) -> list[str]:
    return _LINK.findall(_CODE.sub("", prose(path)))


def anchors(path: Path) -> set[str]:
    """The ids that GitHub gives to headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(path)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found
