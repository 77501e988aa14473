"""Every link of the documentation leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.pages_of_docs import DOCS, ROOT, anchors, links, markdown


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", markdown(), ids=_name)
def test_links_resolve(page: Path) -> None:
    broken = [link for link in links(page) if not _resolves(page, link)]
    assert broken == []


def _resolves(page: Path, link: str) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return True
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


def test_every_page_is_reached_from_another_one() -> None:
    reached = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in markdown()
        for link in links(page)
        if not link.startswith(("http", "#"))
    }
    unreached = [path.name for path in DOCS.rglob("*.md") if path.resolve() not in reached]
    assert set(unreached) <= {"README.md"}  # the index, from which the others are reached
