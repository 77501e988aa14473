"""Surroundings for running commands: rules for a real shell as a test program, a context, and both confinements."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.tool_context import RecordingSink
from tests.missing import give_up
from toolhub_service.domain.verdict import CommandRule, Constraints, FlagRule, Sandbox
from toolhub_service.guards.commands.safe import SAFE_COMMANDS
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.workspace.workspace import Workspace

SCRIPT = CommandRule(
    name="script",
    path="/bin/sh",
    flags=(FlagRule("-c", "(?s).*"),),
    end_of_options=False,
    environment={"COLOUR": "blue", "TOPIC": ""},
)
"""Lets a test say what its process does. No rule that is shipped runs a shell."""

TEST_COMMANDS = (*SAFE_COMMANDS, SCRIPT)


def command_context(
    folder: Path,
    *,
    commands: tuple[CommandRule, ...] = TEST_COMMANDS,
    sandbox: Sandbox | None = None,
    timeout_s: float = 30.0,
    sink: RecordingSink | None = None,
) -> ToolContext:
    return ToolContext(
        call_id="call-1",
        principal_id="tester",
        request_id="request-1",
        deadline_s=asyncio.get_running_loop().time() + timeout_s,
        constraints=Constraints(commands=commands, sandbox=sandbox or Sandbox()),
        sink=sink or RecordingSink(),
        open_workspace=lambda: Workspace(str(folder)),
    )


def confinement_of(level: str) -> Confinement:
    """A confinement of that level; the test is skipped, in one line, where bubblewrap cannot work."""
    if level == "rlimits":
        return Confinement(bubblewrap="", landlock=False)
    if level == "landlock":
        if not landlock_abi():
            pytest.skip("this kernel has no Landlock: Linux 5.13 with CONFIG_SECURITY_LANDLOCK has it")
        return Confinement(bubblewrap="")
    confinement = Confinement()
    if not _works(confinement):
        give_up("no bubblewrap that works here: apt-get install bubblewrap, and allow user namespaces")
    return confinement


def _works(confinement: Confinement) -> bool:
    if not confinement.bubblewrap:
        return False
    line: Sequence[str] = confinement.wrap_command(
        "bubblewrap", (shutil.which("true") or "",), Sandbox(), "/tmp", "/tmp"
    )
    return subprocess.run(line, capture_output=True, check=False).returncode == 0
