"""Skills' folders, written for a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SKILL_MD = (
    "---\nname: {name}\ndescription: {description}\n---\n\n# {name}\n\nRead references/more.md when you need more.\n"
)


def write_skill(
    below: Path,
    name: str = "word-count",
    *,
    description: str = "Count words. Use it when somebody asks how long a text is.",
    text: str = "",
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """The folder of a skill named `name`. `text`: all of its SKILL.md; `files`: further files by path."""
    folder = below / name
    for path, content in {
        "SKILL.md": text or SKILL_MD.format(name=name, description=description),
        **(files or {}),
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
