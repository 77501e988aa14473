"""`toolhub extras`: what it prints, and the command that it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from toolhub_service.app.installation import EXTRAS
from toolhub_service.cli import extras as extras_command
from toolhub_service.cli.root import toolhub


def invoke(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(toolhub, ["extras", *words])


def test_the_list_names_each_extra_with_its_purpose_and_whether_it_is_installed() -> None:
    shown = invoke("list")
    assert shown.exit_code == 0
    assert all(f"{name} " in shown.stdout and purpose in shown.stdout for name, purpose in EXTRAS.items())
    records = {each["name"]: each for each in json.loads(invoke("list", "-o", "json").stdout)}
    assert records["web"] == {
        "name": "web",
        "isInstalled": True,
        "requirements": records["web"]["requirements"],
        "purpose": EXTRAS["web"],
    }
    assert any(each.startswith("trafilatura") for each in records["web"]["requirements"])


def test_an_installed_extra_needs_nothing() -> None:
    assert invoke("install", "web", "mcp").stdout == "Nothing to do: everything of web, mcp is installed.\n"


def test_an_unknown_extra_is_refused_with_those_that_there_are() -> None:
    refused = invoke("install", "wbe")
    assert refused.exit_code == 2
    assert "'wbe' is not one of 'betterproto'" in refused.output


def test_a_dry_run_prints_the_command_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_command, "is_installed", lambda requirement: not requirement.startswith("mss"))
    shown = invoke("install", "desktop", "web", "--dry-run")
    assert shown.stdout == f"{sys.executable} -m pip install 'mss>=10'\n"


@pytest.mark.parametrize(("code", "exit_code", "text"), [(0, 0, "Restart a hub"), (3, 1, "ended with 3")])
def test_the_outcome_of_the_installer_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int, text: str
) -> None:
    def command_of(requirements: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", f"raise SystemExit({code})", *requirements]

    monkeypatch.setattr(extras_command, "is_installed", lambda _: False)
    monkeypatch.setattr(extras_command, "command_to_install", command_of)
    ended = invoke("install", "desktop")
    assert (ended.exit_code, text in ended.output) == (exit_code, True)
