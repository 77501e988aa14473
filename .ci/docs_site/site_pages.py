"""The pages of the site: those of docs/, and every file of the repository that they lead to.

A page of docs/ keeps its place. What is linked from there and lies elsewhere is put below `repository/`: Markdown as it
is, another text as a page with one code block, a folder without a README as a list of its files. So no link to a file
leaves the site, and it can be read from a disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = "repository"
IMAGES = {".png", ".svg"}
LANGUAGES = {".json": "json", ".lua": "lua", ".py": "python", ".rs": "rust", ".java": "java", ".proto": "protobuf"}
LANGUAGES |= {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}

_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_LINK_OR_CODE = re.compile(
    r"^ *```.*?^ *```|`[^`\n]+`|(?P<text>!?\[(?:[^\]`]|`[^`\n]*`)*\]\()(?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)


class BrokenLinkError(Exception):
    """A page links a file that is not there; the message names both."""


def contents() -> dict[str, str | bytes]:
    """The content of every file below the site's pages, by its path, such as `repository/examples/index.md`."""
    waiting = sorted(DOCS.rglob("*.md"))
    found: dict[str, str | bytes] = {}
    while waiting:
        path = waiting.pop()
        name = site_path(path)
        if name in found:
            continue
        if path.suffix in IMAGES:
            found[name] = path.read_bytes()
            continue
        text = _as_markdown(path)
        waiting += linked(path, text)
        found[name] = _with_site_links(path, text)
    return found


def site_path(path: Path) -> str:
    """The place of a file of the repository in the site, such as `repository/index.md` for `README.md`."""
    inside = path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path(ELSEWHERE, path.relative_to(ROOT))
    if path.is_dir():
        return (inside / "index.md").as_posix()
    if inside.name == "README.md":
        return inside.with_name("index.md").as_posix()
    return inside.as_posix() + ("" if inside.suffix in {".md", *IMAGES} else ".md")


def linked(page: Path, text: str) -> Iterator[Path]:
    """The files and folders of the repository that a page links. Raises BrokenLinkError."""
    for match in _LINK_OR_CODE.finditer(text):
        if (target := _file_of(page, match)) is not None:
            yield target


def _file_of(page: Path, match: re.Match[str]) -> Path | None:
    """The file that a link of `page` names; None for a link within the page, one to the web, and code."""
    target = match["target"]
    if target is None or re.match(r"#|\w+:", target):
        return None
    path = Path(os.path.normpath((page if page.is_dir() else page.parent) / target.partition("#")[0]))
    if not path.exists() or not path.is_relative_to(ROOT):
        raise BrokenLinkError(f"{page.relative_to(ROOT)}: {target} is not there")
    readme = path / "README.md"
    return readme if readme.is_file() else path


def _with_site_links(page: Path, text: str) -> str:
    """The text with every link rewritten for the site."""
    folder = Path(site_path(page)).parent

    def rewrite(match: re.Match[str]) -> str:
        path = _file_of(page, match)
        if path is None:
            return match[0]
        anchor = "".join(match["target"].partition("#")[1:])
        return f"{match['text']}{os.path.relpath(site_path(path), folder)}{anchor})"

    return _LINK_OR_CODE.sub(rewrite, text)


def _as_markdown(path: Path) -> str:
    """A file's text if it is Markdown, else a page that shows it; for a folder, a page that lists its files."""
    title = f"# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        return title + "".join(f"- [{name}]({name})\n" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f"{_NOT_SEARCHED}{title}````{language}\n{text.rstrip()}\n````\n"
