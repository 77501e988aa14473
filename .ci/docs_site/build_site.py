"""Builds the site of docs/ into build/docs-site/site, strictly: a warning of the generator fails.

`make docs-site` calls it, and so does `make check`. The site needs no server and no network, its search included. The
pages stay plain Markdown that every other reader shows alike: the build fails where the generator sees other blocks
than CommonMark does.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import site_blocks
import site_pages

BUILT = site_pages.ROOT / "build" / "docs-site"
SETTINGS = Path(__file__).with_name("zensical.toml")
THEME = Path(__file__).with_name("theme")
_ADDRESS = re.compile(r'<(?:link|script|img|iframe)\b[^>]*(?:href|src)="?(https?://[^"\s>]+)')


class SiteError(Exception):
    """The site cannot be built; the message says why."""


def settings() -> str:
    """zensical.toml, with all pages of a folder but its index for an entry of the navigation such as `decisions/*`."""
    return re.sub(r'"([\w/-]+)/\*"', lambda match: ", ".join(_pages_of(match[1])), SETTINGS.read_text(encoding="utf-8"))


def _pages_of(folder: str) -> Iterator[str]:
    for path in sorted((site_pages.DOCS / folder).glob("*.md")):
        if path.name != "README.md":
            yield json.dumps(f"{folder}/{path.name}")


def build(folder: Path) -> list[str]:
    """Replace `folder` by the site's sources and, in `site`, the site; return the paths of its pages.

    Raises SiteError, and BrokenLinkError before anything is replaced.
    """
    contents = site_pages.contents()
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in contents.items():
        path = folder / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    shutil.copytree(THEME, folder / "theme")
    (folder / "zensical.toml").write_text(settings(), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    pages = sorted(name for name in contents if name.endswith(".md"))
    found = [built.stdout + built.stderr] if built.returncode else list(faults(folder, pages))
    if found:
        raise SiteError("\n".join(found))
    return pages


def faults(folder: Path, pages: list[str]) -> Iterator[str]:
    """What is wrong with the site that was built, one line each."""
    for name in pages:
        text = (folder / "pages" / name).read_text(encoding="utf-8")
        html = (folder / "site" / name).with_suffix(".html").read_text(encoding="utf-8")
        yield from (f"{name}: {fault}" for fault in site_blocks.differences(text, html))
        yield from (f"{name}: needs the network for {address}" for address in _ADDRESS.findall(html))


def main() -> int:
    """0, or 1 with what the generator said or what is wrong with its pages."""
    try:
        pages = build(BUILT)
    except (SiteError, site_pages.BrokenLinkError) as reason:
        print(f"docs-site: {reason}", file=sys.stderr)
        return 1
    print(f"docs-site: {len(pages)} pages, begin at {(BUILT / 'site' / 'index.html').relative_to(site_pages.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
