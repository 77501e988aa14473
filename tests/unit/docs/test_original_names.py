"""The table of original names is true row by row, and a row that is not is found out."""

from __future__ import annotations

from pathlib import Path

import original_names_page
import pytest

from tests.originals import Design, Row, designs, is_test
from toolhub_service.tools.media.tools import EXTENSIONS

KEPT = ("unit/docs/test_original_names.py::test_every_row_is_true",)


@pytest.fixture(scope="module")
def recorded() -> tuple[Design, ...]:
    return designs()


@pytest.mark.promise("docs.original-names")
def test_every_row_is_true(recorded: tuple[Design, ...]) -> None:
    rows = [row for design in recorded for row in design.rows]
    assert {(row.section, row.name): wrong for row in rows if (wrong := original_names_page.faults(row))} == {}
    assert len(rows) > 400
    assert all(row.name.strip() for row in rows)


def test_what_is_not_there_yet_is_said_with_its_reason_and_is_little(recorded: tuple[Design, ...]) -> None:
    missing = [row for design in recorded for row in design.rows if not row.here]
    assert all(row.note and not row.tests for row in missing)
    assert not missing, [row.name for row in missing]


@pytest.mark.parametrize(
    ("here", "declared", "tests", "fault"),
    [
        (("tool core/fs.none",), {}, KEPT, "there is no"),
        (("argument core/fs.readText none",), {}, KEPT, "there is no"),
        (("result core/fs.listDir entries.none",), {}, KEPT, "there is no"),
        (("needs core/fs.readText write:fs",), {}, KEPT, "there is no"),
        (("argument core/fs.readText maxBytes",), {"default": 7}, KEPT, "the default is"),
        (("argument core/fs.readText maxBytes",), {"bounds": "1 … 2"}, KEPT, "the bounds are"),
        (("error NONE",), {}, KEPT, "there is no"),
        (("detail TIMEOUT none",), {}, KEPT, "there is no"),
        (("setting tools.none",), {}, KEPT, "there is no"),
        (("policy egress[].none",), {}, KEPT, "there is no"),
        (("policy sandbox.max_read_bytes",), {"default": 1}, KEPT, "the default is"),
        (("source N8nWorkflow none",), {}, KEPT, "there is no"),
        (("face countbot read_file none",), {}, KEPT, "there is no"),
        (("code NONE",), {}, KEPT, "there is no"),
        (("permission none",), {}, KEPT, "there is no"),
        (("rpc ToolService.None",), {}, KEPT, "there is no"),
        (("message ToolResult.none",), {}, KEPT, "there is no"),
        (("enum ToolKind.NONE",), {}, KEPT, "there is no"),
        (("event NONE",), {}, KEPT, "there is no"),
        (("metric none",), {}, KEPT, "there is no"),
        (("python toolhub_service.tools.tool:Tool.none",), {}, KEPT, "there is no"),
        (("command policy none",), {}, KEPT, "there is no"),
        (("page none.md",), {}, KEPT, "there is no"),
        (("page policy.md#none",), {}, KEPT, "there is no"),
        (("colour red",), {}, KEPT, "there is no"),
        (("tool",), {}, KEPT, "missing"),
        (("tool core/fs.readText",), {}, (), "no test"),
        ((), {}, KEPT, "no name"),
        (("tool core/fs.readText",), {}, ("unit/docs/test_original_names.py::test_none",), "there is no test"),
        ((), {}, (), "neither"),
    ],
)
def test_a_row_that_is_not_true_is_found_out(
    here: tuple[str, ...], declared: dict[str, object], tests: tuple[str, ...], fault: str
) -> None:
    row = Row("design", "section", "name", here, tests, declared)
    assert fault in " ".join(original_names_page.faults(row))


def test_tests_are_found_with_their_classes_and_only_where_they_are() -> None:
    steps = "unit/runtime/test_steps.py::TestResolve"
    assert is_test(steps)
    assert is_test(f"{steps}::test_unknown_tool_names_its_neighbours")
    assert not is_test("unit/runtime/test_steps.py::test_unknown_tool_names_its_neighbours")
    assert not is_test("unit/runtime/test_none.py::test_none")


def test_a_word_without_meaning_is_no_row(tmp_path: Path) -> None:
    manifest = tmp_path / "names.yaml"
    manifest.write_text("A: {about: b, sections: {c: {rows: {d: {here: tool x, heer: tool y}}}}}")
    with pytest.raises(ValueError, match="A, c, d: heer means nothing"):
        designs(manifest)


def test_a_name_that_is_written_twice_in_its_section_is_refused(tmp_path: Path) -> None:
    """YAML lets the last of two equal keys win silently."""
    manifest = tmp_path / "names.yaml"
    manifest.write_text("A: {about: b, sections: {c: {rows: {d: tool x, d: tool y}}}}")
    with pytest.raises(ValueError, match="d is written twice"):
        designs(manifest)


def test_every_format_that_may_be_sent_is_one_of_the_table(recorded: tuple[Design, ...]) -> None:
    lists = [
        row.name.partition(": ")[2].lower().split(", ")
        for design in recorded
        for row in design.rows
        if any("every_format" in test for test in row.tests)
    ]
    assert sorted(each for listed in lists for each in listed) == sorted(EXTENSIONS)
