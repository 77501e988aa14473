"""Tables, prose and JSON."""

from __future__ import annotations

import json
import sys

import click
import pytest
import yaml
from rich.cells import cell_len

from toolhub.v1 import call_pb2, error_pb2, job_pb2, job_state_pb2, progress_pb2, tool_pb2
from toolhub_service.cli.terminal.output import (
    enum_name,
    explaining,
    footnote,
    join_parts,
    message_as_json,
    print_json,
    print_line,
    print_pairs,
    print_prose,
    print_quoted,
    print_table,
    print_text,
    span,
    style,
)
from toolhub_service.cli.terminal.progress import Pace, amount, amount_done, clock, percent, progress_text
from toolhub_service.guards.foreign_text import is_hidden


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return click.unstyle(capsys.readouterr().out).splitlines()


def test_last_column_wraps_under_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    print_table(("NAME", "MEANING"), [("a", "one two three four five six seven eight nine")])
    assert shown(capsys) == ["NAME  MEANING", "a     one two three four five six seven", "      eight nine"]


def test_last_column_is_cut_to_a_line_where_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    print_table(("NAME", "MEANING"), [("a", "one two three four five six seven, eight nine")], is_cut=True)
    assert shown(capsys)[1] == "a     one two three four five six seven…"


def test_wide_characters_take_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "IS"), [("工具", "x"), ("tool", "y")])
    assert shown(capsys)[1:] == ["工具  x", "tool  y"]


def test_a_pipe_gets_one_line_a_row_of_whole_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID", "WHO", "TEXT"), [("1", "", "a long one " * 9 + "\nand a\ttab"), ("22", "ann", "")], is_cut=True)
    assert shown(capsys) == ["ID  WHO  TEXT", f"1   –    {'a long one ' * 9}and a tab", "22  ann  –"]


def test_a_list_shows_its_total_on_a_terminal_and_separately_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    footnote("3 jobs")
    assert capsys.readouterr() == ("", "3 jobs\n")
    on_a_terminal(monkeypatch)
    footnote("3 jobs")
    assert shown(capsys) == ["3 jobs"]


def test_last_columns_stand_on_a_second_line_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    print_table(
        ("ID", "STATE", "TOOL", "ARGUMENTS"), [("x" * 24, "PENDING", "core/fs.write", "a long one " * 9)], is_cut=True
    )
    lines = shown(capsys)
    assert lines[2:] == [f"{'x' * 24}  PENDING", "    core/fs.write  a long one a long on…"]
    assert max(map(len, lines)) <= 40


def test_a_short_last_column_stays_on_its_line_where_it_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    print_table(("ID", "AGE"), [("x" * 34, "1 s")], is_cut=True)
    assert shown(capsys)[1] == f"{'x' * 34}  1 s"


def test_an_emoji_of_several_characters_takes_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
    print_table(("NAME", "IS"), [(family, "x"), ("tool", "y")])
    assert shown(capsys)[1:] == [f"{family}    x", "tool  y"]


def test_no_table_or_pair_lets_a_tool_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [("\x1b[31mred\x07",)])
    print_pairs([("text", "\x1b]0;title\x07\x9b2J")])
    print_prose("\x1b[2J")
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


def test_line_ends_and_tabs_of_a_text_stay(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a\tb\nc\r")
    assert capsys.readouterr().out == "a\tb\nc\\u000d\n"


def test_a_line_stays_one_line_and_only_its_own_colours_are_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("tool\n18:00  APPROVED\x1b[8m")
    assert capsys.readouterr().out == "tool 18:00  APPROVED\\u001b[8m\n"
    assert join_parts("\x1b[8m", style("red", fg="red")) == "\\u001b[8m\x1b[31mred\x1b[0m"


def test_quoted_text_has_a_mark_before_each_line_and_no_long_gap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    print_quoted("begin" + "\n" * 61 + "tool  core/fs.readText\n\n" + " " * 5_000 + "x" * 50 + "\n" + "工" * 30)
    lines = shown(capsys)
    assert all(line.startswith("│ ") and cell_len(line) <= 40 for line in lines)
    assert lines[:4] == ["│ begin", "│ ⟨60 empty lines⟩", "│ tool  core/fs.readText", "│ "]
    assert len(lines) == 8


def test_a_cell_imitates_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("WHO", "TOOL"), [("ann   APPROVED\n\nbob  PENDING", "x")])
    assert shown(capsys)[1] == "ann APPROVED bob PENDING  x"


@pytest.mark.parametrize("form", ["json", "jsonl", "yaml", "name", None])
def test_data_in_a_pipe_has_no_hidden_character_and_the_same_meaning(
    capsys: pytest.CaptureFixture[str], form: str | None
) -> None:
    record = {"name": "\u202ea\x9b\x7f\U000e0041", "texts": ["two\nlines", "❤\ufe0f"]}
    with click.Context(click.Command("x")) as context:
        if form:
            context.meta["toolhub.output"] = form
        print_json(record)
    text = capsys.readouterr().out
    assert not any(map(is_hidden, text.replace("\ufe0f", "")))
    if form == "name":
        assert text == "\\u202ea\\u009b\\u007f\\udb40\\udc41\n"
    else:
        assert (yaml.safe_load if form == "yaml" else json.loads)(text) == record


def test_lines_after_the_first_are_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    line = "grants: [{principals: [local], capabilities: [network]}]"
    print_prose(f"An operator can allow this, in policy.yaml:\n{line}", "  ", "✗")
    assert shown(capsys) == ["✗ An operator can allow this, in", "  policy.yaml:", f"  {line}"]


def test_json_payloads_are_shown_as_json() -> None:
    tool = tool_pb2.ToolSpec(name="a/b", input_schema_json=b'{"type": "object"}')
    tool.examples.add(title="x", args_json=b'{"n": 1}')
    plain = message_as_json(tool)
    assert plain["inputSchema"] == {"type": "object"}
    assert plain["examples"] == [{"title": "x", "args": {"n": 1}}]


def test_structs_and_maps_are_shown_plainly() -> None:
    intent = call_pb2.ToolIntent(tool="a/b")
    intent.args_struct.update({"n": 1})
    context = call_pb2.ExecContext(labels={"team": "x"})
    error = error_pb2.ToolError(kind=error_pb2.ERROR_KIND_TIMEOUT)
    assert message_as_json(intent) == {"tool": "a/b", "args": {"n": 1.0}}
    assert message_as_json(context) == {"labels": {"team": "x"}}
    assert json.dumps(message_as_json(error)) == '{"kind": "ERROR_KIND_TIMEOUT"}'


# Rates and times from reports, and how they are worded.


def report(step: float, total: float | None = None, unit: str = "rows", message: str = "") -> progress_pb2.Progress:
    return progress_pb2.Progress(step=step, total=total, unit=unit, message=message)


def paced(*reports: tuple[float, float]) -> Pace:
    pace = Pace()
    for at_s, step in reports:
        pace.add(report(step), at_s)
    return pace


def test_rate_comes_from_the_clock_of_the_reports() -> None:
    assert paced((100.0, 0), (102.0, 50)).rate == 25.0


def test_one_report_or_reports_of_one_moment_make_no_rate() -> None:
    assert paced((1.0, 5)).rate is None
    assert paced((1.0, 5), (1.0, 9)).rate is None


def test_stalled_work_has_no_rate_and_no_estimated_end() -> None:
    pace = paced((0.0, 5), (5.0, 5))
    assert pace.rate is None
    assert pace.remaining_s(report(5, 10)) is None


def test_rate_is_that_of_the_last_ten_seconds() -> None:
    assert paced((0.0, 0), (1.0, 1_000), (20.0, 1_010), (25.0, 1_020), (30.0, 1_030)).rate == 2.0


def test_work_that_is_run_again_begins_a_new_rate() -> None:
    assert paced((0.0, 0), (1.0, 1_000), (2.0, 1), (4.0, 3)).rate == 1.0


def test_work_that_was_held_up_begins_a_new_rate() -> None:
    pace = paced((0.0, 0), (1.0, 10))
    pace.reset()
    pace.add(report(10), 60.0)
    assert pace.rate is None
    pace.add(report(12), 61.0)
    assert pace.rate == 2.0


def test_time_left_is_the_tools_guess_before_ours() -> None:
    pace = paced((0.0, 0), (1.0, 10))
    assert pace.remaining_s(report(10, 110)) == 10.0
    guessed = report(10, 110)
    guessed.eta.FromMilliseconds(2_500)
    assert pace.remaining_s(guessed) == 2.5
    assert pace.remaining_s(report(10)) is None


def test_a_report_is_shown_in_one_line() -> None:
    pace = paced((0.0, 0), (2.0, 30))
    assert progress_text(report(30, 120, message="table orders"), pace) == (
        "25 % · 30 of 120 rows · 15 rows/s · 00:06 left · table orders"
    )
    assert progress_text(report(120, 120), pace) == "100 % · 120 of 120 rows · 15 rows/s"
    assert progress_text(report(30), Pace()) == "30 rows"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (999, "bytes", "999 bytes"),
        (1_000, "bytes", "1 kB"),
        (12_345_678, "bytes", "12.3 MB"),
        (999_900_000, "bytes", "1 GB"),
        (5e15, "bytes", "5,000.0 TB"),
        (0.25, "steps", "0.2 steps"),
        (12_345.6, "rows", "12,346 rows"),
        (3, "", "3"),
    ],
)
def test_amounts_are_abbreviated(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_a_percentage_needs_a_total_and_is_never_rounded_up_to_100() -> None:
    assert percent(report(999, 1_000)) == "99 %"
    assert percent(report(3, 0)) == ""
    assert percent(report(3)) == ""
    assert percent(report(12, 10)) == "100 %"
    assert amount_done(report(44e6, 90e6, "bytes")) == "44 MB of 90 MB"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "00:00"), (73, "01:13"), (7_205, "2:00:05")])
def test_times_are_shown_as_a_clock_does(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def test_value_of_an_enum_is_named_without_its_prefix_and_one_of_a_newer_hub_by_its_number() -> None:
    assert enum_name(job_pb2.JobStatus(state=job_state_pb2.JOB_STATE_RUNNING), "state") == "RUNNING"
    assert enum_name(job_pb2.JobStatus.FromString(b"\x18\xe7\x07"), "state") == "999"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")]
)
def test_a_duration_is_shown_in_the_largest_unit_of_which_it_has_two(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no \x1b key"), "of.yaml: no \\u001b key"),
        (OSError(13, "Permission denied"), "of.yaml: Permission denied"),
        (OSError(13, "Permission denied", "its.lock"), "its.lock: Permission denied"),
    ],
)
def test_a_failure_is_explained_in_one_line_that_names_the_file(error: Exception, text: str) -> None:
    with pytest.raises(click.ClickException) as ended, explaining(ValueError, OSError, place="of.yaml"):
        raise error
    assert (ended.value.message, ended.value.exit_code) == (text, 1)
