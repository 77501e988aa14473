"""README.md from its first command, in a copy of the checkout.

`make run` makes an environment of its own, with what the hub needs and no more. What it and the first commands after it
show is compared with the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.terminal import ROOT, in_terminal, terminal
from tests.e2e.test_tour import README, completed, hub_environment, pattern_of, steps_of
from tests.missing import give_up

_INSTALLED_WITHIN_S = 400.0
_FIRST_CALLS = ("toolhub tools list", "toolhub call core/fs.writeText", "toolhub audit verify")


@pytest.mark.promise("packaging.make-run")
@pytest.mark.timeout(_INSTALLED_WITHIN_S + 120)
def test_make_run_and_the_first_calls_show_what_the_readme_says(tmp_path: Path) -> None:
    copy, home = tmp_path / "copy", tmp_path / "home"
    home.mkdir()
    _copy_checkout(copy)
    env = hub_environment(home)
    # What was downloaded before is not downloaded again.
    env["PIP_CACHE_DIR"] = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache/pip"))
    # The environment of the tests is not to be found: neither its programs nor that it is active.
    env["PATH"] = os.pathsep.join(each for each in env["PATH"].split(os.pathsep) if not Path(each, "toolhub").exists())
    env = {
        name: value
        for name, value in env.items()
        if name not in {"VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "PYTHONPATH"}
    }
    with terminal(["make", "run"], env, cwd=copy) as (_, screen):
        shown = screen.wait_for("tools list\n", within_s=_INSTALLED_WITHIN_S)
        if "setup: no packages of the hub" in shown:
            give_up(f"no packages can be installed here:\n{shown[-600:]}")
        first, *steps = [
            step for step in steps_of(README) if step.command == "make run" or _is_first_call(step.command)
        ]
        address, metrics, mcp = re.findall(r"127\.0\.0\.1:\d+", shown)[:3]

        def at_default_ports(text: str) -> str:
            for chosen, default in ((address, 50051), (metrics, 9464), (mcp, 50052)):
                text = text.replace(chosen, f"127.0.0.1:{default}")
            return text

        banner = at_default_ports(shown).replace("TOOLHUB_ADDRESS=127.0.0.1:50051 ", "")
        assert re.fullmatch(pattern_of(first.shown), _without_progress(banner)), banner
        caller = {**env, "PATH": f"{copy}/.venv/bin{os.pathsep}{env['PATH']}", "TOOLHUB_ADDRESS": address}
        transcript = ""
        for step in steps:
            answer = at_default_ports(
                in_terminal(["bash", "-c", completed(step.command, transcript)], caller, cwd=copy).text
            )
            transcript += answer
            assert re.fullmatch(pattern_of(step.shown), answer), f"$ {step.command}\n{answer}"
    assert not (copy / ".venv/bin/pytest").exists(), "it installs more than the hub needs"


def _is_first_call(command: str) -> bool:
    return command.startswith(_FIRST_CALLS)


def _without_progress(text: str) -> str:
    """Progress is overwritten in its place; what is left of it are its characters before a return."""
    return re.sub(r"^ +\d+ s  .*?(?=setup|\[info|$)", "", text, flags=re.MULTILINE)


def _copy_checkout(to: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
