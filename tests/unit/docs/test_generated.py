"""Pages that are made from the code are what the code says, and what is stale is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pages
import pytest
import schema_words
import tables

from tests.unit.docs.pages_of_docs import DOCS, GENERATED, ROOT


def test_a_page_that_was_edited_or_is_missing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On three small pages: that those of docs/ are not stale `make check` finds out."""
    made = {f"docs/{name}.md": lambda name=name: f"# {name}\n" for name in ("errors", "tools", "cli")}
    monkeypatch.setattr(pages, "PAGES", made)
    monkeypatch.setattr(pages, "TABLES", {})
    for name, text in pages.stale(tmp_path):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(pages.stale(tmp_path)) == []
    (tmp_path / "docs/tools.md").write_text("edited")
    (tmp_path / "docs/errors.md").unlink()
    assert [name for name, _ in pages.stale(tmp_path)] == ["docs/errors.md", "docs/tools.md"]


def test_an_error_while_pages_are_written_leaves_every_page_as_it_was(tmp_path: Path) -> None:
    """The second page cannot be written: its folder is missing."""
    (tmp_path / "errors.md").write_text("before")
    with pytest.raises(FileNotFoundError):
        pages.write(tmp_path, {"errors.md": "after", "missing/tools.md": "after"})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("errors.md", "before")]
    pages.write(tmp_path, {"errors.md": "after"})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("errors.md", "after")]


def test_every_generated_page_says_so() -> None:
    assert {Path(name).name for name in pages.PAGES} == GENERATED
    for name in GENERATED:
        assert "do not edit" in (DOCS / name).read_text()
    for name in pages.TABLES:
        assert "do not edit" in (ROOT / name).read_text().lower()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 100}, ("integer", "1 … 100")),
        ({"type": "string", "minLength": 1, "maxLength": 40}, ("string", "length 1 … 40")),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 600}, ("number", "> 0, ≤ 600")),
        (
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            ("array of string or null", ""),
        ),
        ({"$ref": "#/$defs/Entry"}, ("`Entry`", "")),
        ({"enum": ["a", 1]}, ('`"a"` or `1`', "")),
        ({}, ("any", "")),
    ],
)
def test_a_schema_is_told_in_words(schema: dict[str, Any], words: tuple[str, str]) -> None:
    assert (schema_words.told_type(schema), schema_words.told_bounds(schema)) == words


def test_cells_hold_no_markup_by_accident() -> None:
    *_, row = tables.table(("a", "b"), [("<data_dir>/x | y", "`<code>` and *")])
    assert row == "| \\<data_dir>/x \\| y | `<code>` and \\* |"
