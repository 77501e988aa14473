"""Short names of plans."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pytest

from toolhub_service.cli.plans import plans_file, remember_plan, whole_digest

DIGEST = "v2.1795912474882." + "a1" * 120


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def resolve(given: str) -> str:
    command = click.Command("call", params=[click.Option(["--plan"])])
    return whole_digest(click.Context(command), command.params[0], given)


def test_a_name_leads_to_its_digest_and_a_digest_to_itself() -> None:
    name = remember_plan(DIGEST, time.time() + 600)
    assert (len(name), name.startswith("plan_")) == (13, True)
    assert resolve(name) == DIGEST
    assert resolve(DIGEST) == DIGEST
    assert resolve("") == ""
    assert plans_file().stat().st_mode & 0o077 == 0


def test_a_name_that_nothing_printed_is_refused_with_what_to_do() -> None:
    with pytest.raises(click.BadParameter, match="Run the command again with --dry-run"):
        resolve("plan_00000000")


def test_names_of_expired_plans_are_forgotten() -> None:
    old = remember_plan(DIGEST, time.time() - 1)
    remember_plan(DIGEST + "b", time.time() + 600)
    with pytest.raises(click.BadParameter):
        resolve(old)


def test_a_broken_file_is_written_anew(state: Path) -> None:
    plans_file().parent.mkdir(parents=True)
    for broken in ("{", "[]", '{"plan_1": 7}', '{"plan_1": {"digest": "x"}}'):
        plans_file().write_text(broken)
        name = remember_plan(DIGEST, time.time() + 600)
        assert resolve(name) == DIGEST


def test_where_no_file_can_be_kept_the_digest_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert remember_plan(DIGEST, time.time() + 600) == DIGEST
