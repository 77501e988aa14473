"""The site of docs/: what stands in its navigation, and where its links lead."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_site
import pytest
import site_blocks
import site_pages

from tests.unit.docs.pages_of_docs import DOCS, GENERATED, ROOT


def named(entries: list[Any]) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from named(inner if isinstance(inner, list) else [inner])


NAVIGATION = tomllib.loads(build_site.settings())["project"]["nav"]
PARTS = {title: list(named(inner)) for part in NAVIGATION for title, inner in part.items()}


def test_every_page_of_docs_stands_in_the_navigation_once() -> None:
    pages = sorted(page for part in PARTS.values() for page in part if not page.startswith(site_pages.ELSEWHERE))
    assert pages == sorted(site_pages.site_path(path) for path in DOCS.rglob("*.md"))


def test_generated_pages_are_the_reference() -> None:
    assert set(PARTS["Reference"]) == GENERATED


def test_a_link_out_of_docs_leads_to_a_page_of_the_site() -> None:
    contents = site_pages.contents()
    assert "](repository/examples/index.md)" in str(contents["policy.md"])
    assert "](repository/deploy/envoy.yaml.md)" in str(contents["mcp-server.md"])
    assert "](../../policy.md" in str(contents["repository/examples/index.md"])
    assert str(contents["repository/deploy/envoy.yaml.md"]).count("````") == 2


@pytest.mark.parametrize("code", ["`[a](b.md)`", "```text\n[a](b.md)\n```", "[a](#b)", "[a](https://example.com/b.md)"])
def test_code_anchors_and_addresses_are_no_files(code: str) -> None:
    assert list(site_pages.linked(DOCS / "tour.md", f"before\n\n{code}\n")) == []


def test_a_broken_link_is_named_with_its_page() -> None:
    with pytest.raises(site_pages.BrokenLinkError, match=r"docs/tour\.md: no-such\.md is not there"):
        list(site_pages.linked(ROOT / "docs" / "tour.md", "[x](no-such.md)"))


def test_a_list_that_the_generator_does_not_see_is_a_difference() -> None:
    page = "<article><p>One:\n- a\n- b</p></article>"
    (difference,) = site_blocks.differences("One:\n- a\n- b\n", page)
    assert difference.startswith("2 times list item in the text, 0 times in the site: put an empty line before a list")
    assert list(site_blocks.differences("One\n", "<article><p>One</p></article>")) == []


def test_names_of_pages_that_forges_open_for_a_folder_are_indexes() -> None:
    assert site_pages.site_path(Path(ROOT / "docs" / "decisions" / "README.md")) == "decisions/index.md"
    assert site_pages.site_path(ROOT / "README.md") == "repository/index.md"
