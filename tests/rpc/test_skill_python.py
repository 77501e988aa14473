"""A Python that scripts of skills cannot start: told at the start, by doctor and in the list, not by the first call."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.fakes.ladders import ladder_of
from tests.hub import RunningHub, running_hub
from tests.rpc import real_servers as real
from tests.rpc.skill_runs import POLICY, plan_skill, script_skill, source_of, text_of
from toolhub_service.app.doctor.machine import scripts_check
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.request import Level
from toolhub_service.sandbox.script_python import ScriptPython

FAKE = """#!/bin/sh
case "$*" in *platform*) printf '["3.11.9", "/usr", "/usr", "%s"]' "$0"; exit ;; esac
[ -e "$0.works" ] && exec /usr/bin/python3 "$@"
exit {code}
"""
"""It says what it is, and runs the rest only while there is a file beside it."""


def fake_python(folder: Path, code: int = 3) -> Path:
    path = folder / "bin" / "python"
    path.parent.mkdir()
    path.write_text(FAKE.format(code=code))
    path.chmod(0o755)
    return path


async def test_skills_whose_python_cannot_start_are_listed_as_unavailable_and_the_log_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await ladder_of("landlock")
    script_skill(tmp_path / "skills", "count", "print('{}')")
    plan_skill(tmp_path / "skills", "steps", [{"id": "now", "tool": "core/util.time.now"}], 1)
    real.write_sources(tmp_path, {"skill": source_of(tmp_path / "skills")})
    settings = {"skills": {"python": str(fake_python(tmp_path))}, "logs": {"level": "warning"}}
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        desk = hub.hub.sourcing.sources
        assert await desk.wait_until_tried(timeout_s=real.WITHIN_S)
        (status,) = [each for each in desk.statuses() if each.name == "skill"]
        assert status.reason == ""  # whole: what is read and planned can be used
        (remark,) = status.diagnostics
        assert "Scripts of skills cannot run here" in remark
        assert "does not start in the sandbox: exit code 3" in remark
        refused = text_of(await hub.invoke("skill/count"))
        assert refused.startswith("TOOL_UNAVAILABLE")
        assert "operators see why by `toolhub doctor`" in refused
        assert str(tmp_path) not in refused
        assert (await hub.invoke("skill/count.read")).ok
        assert "TOOL_UNAVAILABLE" not in text_of(await hub.invoke("skill/steps"))
        assert capfd.readouterr().err.count("scripts_cannot_start") == 1


async def test_a_hub_without_skills_does_not_try_their_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"skills": {"python": str(fake_python(tmp_path))}, "logs": {"level": "warning"}}
    async with running_hub(tmp_path, settings=settings) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        assert "scripts_cannot_start" not in capfd.readouterr().err


async def test_a_python_that_breaks_after_the_start_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    """Before, this was EXECUTION_ERROR: "Change the arguments as its words say"."""
    await ladder_of("landlock")
    script_skill(tmp_path / "skills", "count", "print('{}')")
    script_skill(tmp_path / "skills", "own", "raise SystemExit(127)")
    python = fake_python(tmp_path, 127)
    works = python.with_name("python.works")
    works.touch()
    real.write_sources(tmp_path, {"skill": source_of(tmp_path / "skills")})
    async with running_hub(tmp_path, policy=POLICY, settings={"skills": {"python": str(python)}}) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        assert await counted(hub) == "{}"
        # The script's own exit code is its own.
        assert text_of(await hub.invoke("skill/own")).startswith("EXECUTION_ERROR: The skill own failed with exit code")
        works.unlink()
        refused = text_of(await hub.invoke("skill/count"))
        assert refused.startswith("TOOL_UNAVAILABLE"), refused


async def counted(hub: RunningHub) -> str:
    result = await hub.invoke("skill/count")
    assert result.ok, text_of(result)
    return result.result_json.decode()


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
async def test_the_doctor_tries_the_python_of_scripts(level: Level, tmp_path: Path) -> None:
    ladder = await ladder_of(level)
    good = await scripts_check(ScriptPython(ladder))
    assert (good.state.value, sys.executable in good.text) == ("ok", True), good
    bad = await scripts_check(ScriptPython(ladder, str(fake_python(tmp_path, 127))))
    assert (bad.state.value, bad.disables) == ("warn", ("scripts of skills",))
    assert "exit code 127" in bad.text
    absent = await scripts_check(ScriptPython(ladder, str(tmp_path / "none")))
    assert "does not run" in absent.text
    assert "skills.python" in absent.advice


async def test_the_doctor_names_the_folder_that_a_user_of_scripts_cannot_reach(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root drops to another user: sudo make test")
    ladder = await ladder_of("landlock")
    closed = tmp_path / "closed"
    closed.mkdir()
    python = fake_python(closed)
    python.chmod(0o700)
    found = await scripts_check(ScriptPython(ladder, str(python)))
    assert f"user {ladder.user} cannot reach {python}" in found.text
    assert "Install bubblewrap" in found.advice


async def test_where_nothing_confines_the_doctor_says_so_of_scripts() -> None:
    found = await scripts_check(ScriptPython(Ladder(bubblewrap="", landlock=False)))
    assert "nothing here can confine it" in found.text
