"""Pages that are made from the code are what the code says, and what is stale is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cli_page
import click
import pages
import pytest
import schema_words
import tables

from tests.unit.docs.pages_of_docs import DOCS, GENERATED, ROOT
from toolhub_service.cli.connection.client import connection_options


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


def test_connection_options_are_printed_once_and_named_where_a_command_has_them() -> None:
    page = cli_page.page()
    for said in (
        "Hub and credential by name",
        "API key or token (prefer",
        "turns TLS on",
        "certificate for mutual TLS; also",
    ):
        assert page.count(said) == 1, said
    assert "```\n\nAlso the [connection options](#connection-options).\n" in page.partition("## toolhub call\n")[2]
    assert "connection options" not in page.partition("## toolhub serve\n")[2].partition("\n## ")[0]


def test_an_option_of_which_a_command_says_something_else_is_printed_there() -> None:
    probe = click.command("probe")(connection_options(lambda **_: None))
    probe.params = [
        click.Option(["--address"], help="Another address.") if each.name == "address" else each
        for each in probe.params
    ]
    context = click.Context(probe, info_name="probe", terminal_width=100, max_content_width=100)
    assert cli_page.hide(context, cli_page.connection_options_help())
    assert "Another address." in context.get_help()
    assert "--ca-file" not in context.get_help()
