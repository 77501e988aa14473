"""Command injection corpora against core/exec.run: no shell ever reads a caller's text.

Each line is tried as a whole command, as an argument of echo, as a flag's value and as a path. What runs is recorded by
an audit hook, what it prints is compared with the line itself, and canary files must never appear.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.corpora import load_lines, sample
from tests.fakes.commands import command_context, confinement_of
from tests.fakes.outcomes import outcome, outcome_of
from tests.fakes.util_context import called
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.guards.commands.check import argv_of, check_command
from toolhub_service.guards.commands.safe import SAFE_COMMANDS
from toolhub_service.guards.commands.split import split_command
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.exec_run import ExecRun

CORPORA = [
    "shell/patt_command_exec.txt.gz",
    "shell/fuzzdb_command-execution-unix.txt.gz",
    "shell/fuzzdb_command-injection-template.txt.gz",
    "shell/fuzzdb_shell-delimiters.txt.gz",
]
RUN = 150
"""Lines of which each starts a process; what only checks them takes all."""
NAMES = "shell/fuzzdb_Commands-Linux.txt.gz"
OURS = [
    "; touch {c}",
    "$(touch {c})",
    "`touch {c}`",
    "| touch {c}",
    "&& touch {c}",
    "\ntouch {c}",
    "> {c}",
    "-o{c}",
    "--output={c}",
]
REFUSALS = (ErrorKind.INVALID_INPUT, ErrorKind.POLICY_DENIED, ErrorKind.PATH_OUTSIDE_SANDBOX)
BINARIES = {rule.path for rule in SAFE_COMMANDS}
_started: list[tuple[str, ...]] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _started is None:
        return
    if event == "subprocess.Popen":
        _started.append(tuple(map(str, arguments[1])))
    elif event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"):
        _started.append((event,))


@cache
def _add_hook() -> None:
    """Once a hook is there it stays, and every later test of this process pays for it: not before it is needed."""
    sys.addaudithook(_hook)


@pytest.fixture
def started() -> Iterator[list[tuple[str, ...]]]:
    """Every command line that this process starts."""
    global _started  # noqa: PLW0603
    _add_hook()
    _started = []
    yield _started
    _started = None


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ToolContext]:
    context = command_context(tmp_path, commands=SAFE_COMMANDS, timeout_s=60)
    yield context
    context.close()


def lines_of(canary: str) -> list[str]:
    found = [line for name in CORPORA for line in load_lines(name)]
    armed = [line.replace("{cmd}", f"touch {canary}") for line in found] + [
        line.replace("{c}", canary) for line in OURS
    ]
    return sorted(set(armed))


def is_untouched(folder: Path) -> bool:
    return list(folder.iterdir()) == []


def commands_in(started: list[tuple[str, ...]]) -> set[str]:
    """The programs that were run in the end: what stands after the last `--` of setpriv and prlimit."""
    assert all(line[0].rsplit("/", 1)[-1] in ("setpriv", "prlimit") for line in started), started
    return {line[line.index("--core=0") + 2] for line in started}


@pytest.mark.promise("exec.no-shell")
async def test_a_hostile_string_as_an_argument_is_printed_as_it_is(
    tmp_path: Path, context: ToolContext, started: list[tuple[str, ...]]
) -> None:
    tool = ExecRun(confinement_of("rlimits"))
    lines = sample(lines_of("canary"), RUN)
    ran = 0
    for line in lines:
        result = await outcome_of(called(tool, context, argv=["echo", line]))
        if isinstance(result, ToolError):
            assert result.kind in (ErrorKind.INVALID_INPUT, ErrorKind.POLICY_DENIED)
            continue
        assert result["stdout"] == f"{line}\n"
        ran += 1
    assert ran > 0.6 * len(lines)
    assert len(started) == ran
    assert len(commands_in(started)) == 1
    assert is_untouched(tmp_path)


async def test_a_hostile_string_as_a_command_line_is_refused_or_harmless(
    tmp_path: Path, context: ToolContext, started: list[tuple[str, ...]]
) -> None:
    tool = ExecRun(confinement_of("rlimits"))
    refused = 0
    for line in lines_of("canary") + load_lines(NAMES):
        sleeps = line.startswith("sleep ")
        result = await outcome_of(called(tool, context, command=line, timeoutS=0.2 if sleeps else 60))
        if isinstance(result, ToolError):
            assert result.kind in REFUSALS or (sleeps and result.kind is ErrorKind.TIMEOUT), line
            refused += 1
    assert refused > 950
    assert commands_in(started) <= BINARIES
    assert is_untouched(tmp_path)


async def test_a_hostile_string_as_a_path_names_a_file_of_the_workspace_or_nothing(
    tmp_path: Path, context: ToolContext, started: list[tuple[str, ...]]
) -> None:
    tool = ExecRun(confinement_of("rlimits"))
    for line in sample(lines_of("canary"), RUN):
        result = await outcome_of(called(tool, context, argv=["cat", line]))
        if isinstance(result, ToolError):
            assert result.kind in REFUSALS, line
            continue
        assert (result["exitCode"], result["stdout"]) == (1, "")
    assert len(commands_in(started)) == 1
    assert is_untouched(tmp_path)


@pytest.mark.parametrize(
    "form", [["head", "-n", "{}"], ["head", "-n{}"], ["head", "--lines={}"], ["date", "{}"], ["{}"], ["{}", "x"]]
)
def test_a_hostile_string_as_a_flag_value_or_a_name_is_refused(form: list[str]) -> None:
    names = {rule.name for rule in SAFE_COMMANDS}
    for line in set(lines_of("canary")) - names:
        argv = [word.replace("{}", line) for word in form]
        with pytest.raises(ToolFailure) as caught:
            check_command(argv, SAFE_COMMANDS)
        assert caught.value.error.kind in (ErrorKind.INVALID_INPUT, ErrorKind.POLICY_DENIED)


def test_no_line_makes_a_flag_that_the_grammar_does_not_name() -> None:
    for rule in SAFE_COMMANDS:
        allowed = {flag.flag for flag in rule.flags}
        for line in lines_of("canary"):
            try:
                checked = check_command([rule.name, line], SAFE_COMMANDS)
            except ToolFailure:
                continue
            options = checked.argv[1 : checked.argv.index("--")] if "--" in checked.argv else ()
            assert set(options) <= allowed


ESCAPES = [
    "sort --compress-program=sh x",
    "sort -o x y",
    "tar --to-command=sh -xf x",
    "find . -exec sh {} ;",
    "env sh",
    "xargs sh",
    "git -c core.pager=sh log",
    "less x",
    "nice sh",
    "timeout 1 sh",
    "make -f x",
    "sed e x",
    "awk BEGIN{} x",
    "busybox sh",
    "python3 -c x",
    "bash -c id",
    "sh -c id",
    "/bin/sh",
    "./sh",
    "../bin/sh",
    "/usr/bin/echo x",
    "ECHO x",
    "echo\u00a0x",
    "head --lines 3 --help x",
]


@pytest.mark.parametrize("line", ESCAPES)
def test_programs_that_run_programs_are_not_reachable(line: str) -> None:
    with pytest.raises(ToolFailure):
        check_command(argv_of(line), SAFE_COMMANDS)


def test_splitting_any_line_is_settled_at_once() -> None:
    for line in lines_of("canary"):
        for text in (line, line * 200, f"'{line}", f'"{line}'):
            words = outcome(split_command, text)
            assert words if isinstance(words, list) else words.kind is ErrorKind.INVALID_INPUT
