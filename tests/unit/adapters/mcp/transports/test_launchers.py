"""First starts of launchers: they get minutes, say that they install, and a broken cache is told with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.adapters.mcp.links import linked, soon, until
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms
from toolhub_service.adapters.mcp.transports.launchers import broken_cache_advice
from toolhub_service.domain.errors.failure import ToolFailure


def launcher(folder: Path, script: str, **more: Any) -> McpTerms:
    """A program of the name npx that writes to standard error."""
    npx = folder / "npx"
    npx.write_text(f"#!{sys.executable} -S\nimport sys, time\n{script}\n")
    npx.chmod(0o755)
    return McpTerms("harness", StdioTerms(str(npx)), connect_timeout_s=60.0, **more)


@pytest.mark.parametrize(
    ("command", "args", "may"),
    [
        ("npx", (), True),
        ("/usr/bin/uvx", ("x",), True),
        ("docker", ("run", "-i", "mcp/x"), True),
        ("docker", ("exec", "x"), False),
        ("python", ("run",), False),
    ],
)
def test_programs_that_fetch_what_they_run_may_install(command: str, args: tuple[str, ...], may: bool) -> None:
    assert StdioTerms(command, args).may_install is may


async def test_a_launcher_that_installs_says_so_with_its_last_line(tmp_path: Path) -> None:
    said = "sys.stderr.write('added 23 packages\\n'); sys.stderr.flush(); sys.stdin.read()"
    async with linked(launcher(tmp_path, said)) as link:
        await until(lambda: any("added 23" in line for line in link.diagnostics()))
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon(0.01))
        reason = str(failure.value.error.details["reason"])
        assert reason.startswith("It is starting, and may be installing first (")
        assert reason.endswith("Its last line: added 23 packages")


async def test_a_half_installed_tree_is_told_with_the_command_that_removes_it(tmp_path: Path) -> None:
    cache = f"{Path.home()}/.npm/_npx/15b07286cbcc3329"
    words = f"Error: Cannot find module '{cache}/node_modules/x/dist/index.js'"
    async with linked(launcher(tmp_path, f"sys.stderr.write({words!r}); sys.exit(1)")) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon(60))
        reason = str(failure.value.error.details["reason"])
        assert "Its program ended (exit code 1)." in reason
        assert "remove it with `rm -rf ~/.npm/_npx/15b07286cbcc3329`" in reason


async def test_a_program_that_ends_at_once_is_told_with_its_last_line(tmp_path: Path) -> None:
    for words, told in (
        ("no such flag", "Its last line: no such flag"),
        ("", "run its command in a shell to see why."),
    ):
        async with linked(launcher(tmp_path, f"sys.stderr.write({words!r}); sys.exit(1)")) as link:
            with pytest.raises(ToolFailure) as failure:
                await link.session(soon(60))
            assert str(failure.value.error.details["reason"]).endswith(told)


def test_other_errors_name_no_cache() -> None:
    assert broken_cache_advice(["Error: Cannot find module './mine'"]) == ""
    assert broken_cache_advice(["npm warn using /home/ann/.npm/_npx/15b07286cbcc3329"]) == ""
    assert "uv cache clean" in broken_cache_advice(["error: Failed to read /home/a/.cache/uv/archive-v0/x/METADATA"])
