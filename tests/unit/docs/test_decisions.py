"""Decisions are numbered without gaps and all are in the index."""

from __future__ import annotations

from tests.unit.docs.pages_of_docs import DOCS, links

FOLDER = DOCS / "decisions"
PAGES = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))


def test_no_number_is_used_twice() -> None:
    numbers = [int(name[:4]) for name in PAGES]
    assert numbers == sorted(set(numbers))


def test_the_index_lists_every_decision_in_order() -> None:
    assert links(FOLDER / "README.md") == PAGES


def test_every_decision_says_its_number_and_is_short() -> None:
    for name in PAGES:
        text = (FOLDER / name).read_text()
        number = int(name[:4])
        assert text.startswith((f"# {number:04d} ", f"# {number}. ")), name
        assert text.count("\n") < 80, name
