"""core/exec.run: one allowed command in the workspace, without a shell, confined and bounded.

In this order: the command is checked by its rule's grammar (guards/commands/check.py), its paths by the workspace, and
its environment is built from nothing; then it runs in its own session under the best available confinement
(sandbox/confinement.py). A non-zero exit code is a result; a command that does not end in time is TIMEOUT.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, structs

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import Chunk, EvidenceType
from toolhub_service.domain.tool import (
    EXECUTE_COMMAND,
    Annotations,
    ArgumentRole,
    CostHints,
    Example,
    GuardedArgument,
    ToolLimits,
)
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.guards.commands.check import MAX_ARGUMENTS, argv_of, check_command, check_environment
from toolhub_service.guards.commands.grammar import CheckedCommand
from toolhub_service.guards.commands.safe import SYSTEM_FOLDERS
from toolhub_service.guards.paths import check_path
from toolhub_service.sandbox.capture import Capture
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.hidden import lies_in, with_other_names
from toolhub_service.sandbox.process import FLOOD_BYTES, Finished, run_process
from toolhub_service.sandbox.request import Level, too_weak
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.disk_space.growth import Growth, growth_of
from toolhub_service.tools.disk_space.workspace_usage import BLOCK_BYTES
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace.workspace import Workspace

_EXCERPT_CHARS = 2000


def _unfinished_failure(
    finished: Finished, checked: CheckedCommand, timeout_s: float, stdout: str, stderr: str
) -> ToolFailure:
    """Return the failure of a command that had to be ended; `timeout_s` is the limit in its arguments."""
    seconds = round(finished.duration_s, 1)
    # The time of the arguments starts a moment before that of the process.
    was_own_limit = finished.duration_s > 0.95 * timeout_s
    more_time = "a longer timeoutS" if was_own_limit else "call with a later deadline"
    message = (
        f"{checked.rule} wrote more than {FLOOD_BYTES} bytes and was killed. Request less output."
        if finished.flooded
        else f"{checked.rule} did not finish within {seconds} s and was killed with all its child processes. What "
        "it did until then is not undone: check that before you repeat it, give it less to do, or "
        f"{more_time}."
    )
    return refuse(
        ErrorKind.EXECUTION_ERROR if finished.flooded else ErrorKind.TIMEOUT,
        message,
        command=checked.rule,
        duration_s=seconds,
        stdout=stdout[:_EXCERPT_CHARS],
        stderr=stderr[:_EXCERPT_CHARS],
    )


def _trim_output(capture: Capture, max_chars: int) -> tuple[str, bool]:
    """Return a stream for the caller, with a mark where it was cut; and whether it was."""
    text, cut = capture.text(max_chars)
    return (f"{text}\n…[cut: {capture.total_bytes} bytes in all]", True) if cut else (text, False)


_ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": SYSTEM_FOLDERS}
_BYTES_PER_CHAR = 4
_SHOWN_CHARS = 200
# Share of the remaining time, at most `_RESERVE_S`, reserved for ending a command before the call's own deadline.
_RESERVE = 0.1
_RESERVE_S = 1.5


_Argv = Annotated[
    list[str],
    Meta(description='The command and its arguments, such as ["ls", "-l", "src"].', max_length=MAX_ARGUMENTS),
]
_Line = Annotated[
    str, Meta(description="Instead of argv: the command as one line; quotes group words.", max_length=32_768)
]
_Timeout = Annotated[
    float,
    Meta(
        description="Seconds after which the command is ended, at the call's deadline if that is sooner.", gt=0, le=600
    ),
]
_Environment = Annotated[dict[str, str], Meta(description="Environment variables; only those that the policy names.")]
_OutputChars = Annotated[int, Meta(description="Characters kept of stdout and of stderr.", ge=1, le=200_000)]


class ExecRun(Tool["ExecRun.In", "ExecRun.Out"]):
    name = "core/exec.run"
    description = (
        "Run one allowed command in the workspace and return its output and exit code. No shell runs: no pipes, "
        "redirections, wildcards or variables; run one command a call. Give argv (preferred), or command as one line. "
        "A non-zero exitCode is a result, not an error; 128+n means that signal n ended it. Only commands and "
        "flags that the policy allows can run; a refusal lists them. To read a file prefer core/fs.readText."
    )
    tags = ("exec", "command", "process", "shell")
    capabilities = frozenset({EXECUTE_COMMAND})
    annotations = Annotations(supports_streaming=True)
    cost = CostHints(latency_ms_p50=5.0, latency_ms_p95=100.0)
    limits = ToolLimits(timeout_s=120.0)
    guarded = (
        GuardedArgument("argv", ArgumentRole.COMMAND),
        GuardedArgument("command", ArgumentRole.COMMAND),
        GuardedArgument("cwd", ArgumentRole.WORKING_DIRECTORY),
    )
    examples = (
        Example("List a folder", {"argv": ["ls", "-l", "src"]}),
        Example("Count lines, as one line of text", {"command": "wc -l notes.txt"}),
    )

    class In(ToolInput, frozen=True):
        argv: _Argv | None = None
        command: _Line | None = None
        cwd: Annotated[str, Meta(description="Working directory, a folder of the workspace.")] = "."
        timeout_s: _Timeout = 30.0
        env: _Environment | None = None
        max_output_chars: _OutputChars = 10_000

    class Out(ToolOutput, frozen=True):
        stdout: str
        stderr: str
        exit_code: int
        duration_ms: int
        truncated: bool

    def __init__(self, confinement: Confinement, hidden: Sequence[str] = ()) -> None:
        """`hidden`: the hub's own folders and files; a workspace that holds one runs no commands."""
        self._confinement = confinement
        self._hidden = hidden

    def unavailable_reason(self) -> str:
        return "" if self._confinement.prlimit else "prlimit (util-linux) is not installed"

    def effects(self, args: ExecRun.In, context: ToolContext) -> Sequence[str]:
        checked = self._check_command_line(args, context)
        with context.workspace.open_folder(args.cwd):
            line = shlex.join(checked.argv)
        shown = line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"
        return (f'Run `{shown}` in the folder "{args.cwd}" of the workspace, for at most {args.timeout_s:g} s.',)

    async def run(self, args: ExecRun.In, context: ToolContext) -> ExecRun.Out:
        checked = self._check_command_line(args, context)
        added = check_environment(args.env or {}, checked)
        level = await self._level_for(context)
        with context.workspace.open_folder(args.cwd) as folder:
            _check_paths(checked, args.cwd, folder, context.workspace, level)
            growth = None if context.workspace.account is None else growth_of(context.workspace.account)
            finished = await self._start(checked, level, args, context, added=added, folder=folder, growth=growth)
        if context.workspace.account is not None:
            context.workspace.account.recount_soon()
        if growth is not None and (failure := await growth.find_failure()) is not None:
            raise failure
        return _result(finished, checked, level, args, context)

    def _check_command_line(self, args: ExecRun.In, context: ToolContext) -> CheckedCommand:
        allowed = context.constraints
        checked = check_command(_argv_of(args), allowed.commands, allowed.denied_commands)
        # Checked here, because the confinement would only report that the command could not be run.
        if not os.access(checked.binary, os.X_OK):
            raise refuse(ErrorKind.NOT_FOUND, f"{checked.rule} is allowed but not installed here; use another command.")
        # Each path as it was checked: the kernel resolves `..` at a link's target, a textual check at its name.
        paths = [_normalize_path(path, check_path(args.cwd)) for path in checked.paths]
        argv = (*checked.argv[: len(checked.argv) - len(paths)], *paths)
        return structs.replace(checked, argv=argv, paths=tuple(paths))

    async def _level_for(self, context: ToolContext) -> Level:
        sandbox = context.constraints.sandbox
        level = await self._confinement.level(sandbox, context.workspace.folder)
        if refusal := too_weak(self.name, level, sandbox.minimum_of(self.name)):
            raise refusal
        if _holds(context.workspace.folder, self._hidden):
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "The hub's data folder or settings lie in this workspace, so that no command runs in it. An operator "
                "must move the one or the other.",
                retryable=False,
            )
        return level

    async def _start(
        self,
        checked: CheckedCommand,
        level: Level,
        args: ExecRun.In,
        context: ToolContext,
        *,
        added: Mapping[str, str],
        folder: int,
        growth: Growth | None,
    ) -> Finished:
        workspace = context.workspace.folder
        inside = posixpath.normpath(posixpath.join(workspace, check_path(args.cwd)))
        # Built from nothing: no variable of the hub, such as LD_PRELOAD or a token, reaches a command.
        environment = {**_ENVIRONMENT, "HOME": workspace, "TMPDIR": workspace, **added}
        sandbox = _within_bounds(context.constraints.sandbox, context.workspace)
        confined = self._confinement.program(level, checked.argv, sandbox, workspace, (inside, folder), environment)
        try:
            with confined as program:
                return await run_process(
                    program,
                    deadline_s=_deadline_s(args.timeout_s, context.deadline_s),
                    keep_bytes=args.max_output_chars * _BYTES_PER_CHAR,
                    on_output=lambda lines, stream: context.sink.chunk(Chunk(data=lines, stream=stream)),
                    stop_when=None if growth is None else growth.watch,
                )
        except OSError:
            message = "The command could not be started. An operator must check the hub's machine."
            raise refuse(ErrorKind.EXECUTION_ERROR, message) from None


def _holds(workspace: str, hidden: Sequence[str]) -> bool:
    real = os.path.realpath(workspace)
    return any(lies_in(path, real) for path in with_other_names(hidden))


def _within_bounds(sandbox: Sandbox, workspace: Workspace) -> Sandbox:
    """Return the sandbox with no larger files than the caller may still store; a command that only reads needs none."""
    account = workspace.account
    if account is None:
        return sandbox
    use = account.use
    left_bytes = 0 if account.room.is_short else use.bound.max_bytes - use.used_bytes
    return structs.replace(sandbox, command_file_bytes=max(BLOCK_BYTES, min(sandbox.command_file_bytes, left_bytes)))


def _argv_of(args: ExecRun.In) -> list[str]:
    if args.argv is not None and args.command is None:
        return argv_of(args.argv)
    if args.command is not None and args.argv is None:
        return argv_of(args.command)
    raise refuse(ErrorKind.INVALID_INPUT, "Give either argv or command: one of them, not both.")


def _normalize_path(path: str, cwd: str) -> str:
    """Return the path; one with `..` is normalized so that `..` comes first. Raises ToolFailure."""
    inside = check_path(path if path.startswith("/") else f"{cwd}/{path}")
    if ".." not in path.split("/"):
        return path
    spelled = posixpath.relpath(inside, cwd)
    return f"./{spelled}" if spelled.startswith("-") else spelled


def _check_paths(checked: CheckedCommand, cwd: str, folder: int, workspace: Workspace, level: Level) -> None:
    """Refuse a leading `..` in a folder below a symbolic link, and all links where no sandbox confines the command."""
    if any(path.split("/", 1)[0] == ".." for path in checked.paths):
        named = posixpath.normpath(posixpath.join(os.path.realpath(workspace.folder), check_path(cwd)))
        if str(Path(f"/proc/self/fd/{folder}").readlink()) != named:
            message = f"{cwd[:200]!r} is below a symbolic link, so `..` leads elsewhere: name the folder itself."
            raise refuse(ErrorKind.PATH_OUTSIDE_SANDBOX, message)
    for path in checked.paths if level == "rlimits" else ():
        try:
            status = workspace.stat(check_path(f"{cwd}/{path}"))
        except ToolFailure as failure:
            if failure.error.kind is ErrorKind.NOT_FOUND:
                continue
            raise
        if status.type == "link":
            raise refuse(
                ErrorKind.PATH_OUTSIDE_SANDBOX,
                f"{path[:200]!r} is a symbolic link, which commands may not follow: name its target.",
            )


def _deadline_s(timeout_s: float, call_deadline_s: float) -> float:
    """Return when to end the command: early enough that its output can still be returned within the call."""
    now_s = asyncio.get_running_loop().time()
    remaining_s = max(0.0, call_deadline_s - now_s)
    return now_s + min(timeout_s, remaining_s - min(_RESERVE_S, remaining_s * _RESERVE))


def _result(
    finished: Finished, checked: CheckedCommand, level: Level, args: ExecRun.In, context: ToolContext
) -> ExecRun.Out:
    stdout, stdout_cut = _trim_output(finished.stdout, args.max_output_chars)
    stderr, stderr_cut = _trim_output(finished.stderr, args.max_output_chars)
    context.truncated = stdout_cut or stderr_cut
    duration_ms = round(finished.duration_s * 1000)
    context.proves(
        EvidenceType.TOOL,
        f"exec:{checked.rule}",
        f"Ran {checked.binary}: exit code {finished.exit_code}, {finished.stdout.total_bytes} bytes of output.",
        sha256=finished.stdout.sha256,
        confinement=level,
        exit_code=str(finished.exit_code),
        duration_ms=str(duration_ms),
    )
    if context.truncated:
        bytes_of = f"{finished.stdout.total_bytes} bytes of stdout and {finished.stderr.total_bytes} of stderr"
        kept = f"of {bytes_of} the first {args.max_output_chars} characters each were kept"
        why = f"{kept}: raise maxOutputChars, or let the command write to a file"
        context.proves(EvidenceType.TOOL, f"exec:{checked.rule}", why)
    if finished.timed_out or finished.flooded:
        raise _unfinished_failure(finished, checked, args.timeout_s, stdout, stderr)
    return ExecRun.Out(
        stdout=stdout,
        stderr=stderr,
        exit_code=finished.exit_code,
        duration_ms=duration_ms,
        truncated=context.truncated,
    )
