"""`toolhub audit query` and `report` beside a real hub: what a reader finds, and in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command_line import CommandLine, serving


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with serving(tmp_path_factory.mktemp("home")) as cli:
        cli("call", "core/util.time.now", "timezone=UTC")
        cli("call", "core/nothing")
        cli("call", "core/fs.deletePath", "path=x")
        yield cli


def rows(hub: CommandLine, *words: str) -> list[list[str]]:
    """The cells of the table without its headings."""
    return [re.split(r" {2,}", line) for line in hub("audit", "query", *words).out.splitlines()[1:]]


def test_events_come_newest_first_with_their_dates(hub: CommandLine) -> None:
    times = [row[0] for row in rows(hub)]
    assert len(times) > 4
    assert times == sorted(times, reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time in times)
    assert rows(hub, "-n", "1", "--type", "HUB_STARTED") == rows(hub)[-1:]
    assert "Repeat with -n, or with --until " in hub("audit", "query", "-n", "1").err


@pytest.mark.parametrize(
    "words",
    [
        ("--type", "REFUSED"),
        ("--kind", "POLICY_DENIED"),
        ("--outcome", "POLICY_DENIED"),
        ("--rule", "capabilities", "--type", "REFUSED"),
        ("--tool", "core/fs.*", "--type", "REFUSED", "--since", "yesterday"),
        ("--principal", "local", "--type", "refused", "--since", "12h"),
    ],
)
def test_a_refusal_is_found_by_what_it_is(hub: CommandLine, words: tuple[str, ...]) -> None:
    ((_, event, who, tool, outcome, rule, _),) = rows(hub, *words)
    assert (event, who, tool, outcome) == ("REFUSED", "local", "core/fs.deletePath", "POLICY_DENIED")
    assert rule == "capabilities"


def test_filters_that_match_nothing_and_mistakes_are_told(hub: CommandLine) -> None:
    assert "No event matches." in hub("audit", "query", "--until", "yesterday").err
    assert "No event matches." in hub("audit", "query", "--label", "team=ops").err
    assert "No event matches." in hub("audit", "query", "--since", "2026-01-01", "--until", "2026-01-02").err
    assert "--label takes NAME=VALUE" in hub("audit", "query", "--label", "team").err
    assert "--kind takes one of: " in hub("audit", "query", "--kind", "nonsense").err
    assert "write yesterday, 30m" in hub("audit", "query", "--since", "tomorrow").err


def test_the_report_counts_on_the_terminal_as_json_and_as_a_page(hub: CommandLine, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = hub("audit", "report", "--since", "24h", "--html", str(page)).out
    assert re.search(r"calls +3: 1 succeeded, 1 failed, 1 refused", text)
    assert re.search(r"capabilities +POLICY_DENIED +1", text)
    assert "<td>core/util.time.now</td>" in page.read_text()
    found = hub("audit", "report", "-o", "json").json
    assert (found["calls"], found["refusals"][0]["rule_id"]) == (3, "capabilities")
    assert hub("audit", "report", "--since", "2026-01-01", "--until", "2026-01-02", "-o", "json").json["calls"] == 0
    assert hub("audit", "report", "--html", str(tmp_path / "no" / "file")).code == 1
