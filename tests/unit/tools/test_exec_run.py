from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.fakes.commands import SCRIPT, TEST_COMMANDS, command_context, confinement_of
from tests.fakes.tool_context import RecordingSink
from tests.fakes.util_context import called, refused
from tests.overtaken import overtaken
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import Chunk
from toolhub_service.domain.tool import EXECUTE_COMMAND
from toolhub_service.domain.verdict import CommandRule, Sandbox
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.tools.exec_run import ExecRun


@pytest.fixture(params=["rlimits", "landlock", "bubblewrap"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tool(level: str) -> ExecRun:
    return ExecRun(confinement_of(level))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "notes.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "outside.txt").write_text("outside", encoding="utf-8")
    yield workspace
    assert (tmp_path / "outside.txt").read_text(encoding="utf-8") == "outside"


async def script(tool: ExecRun, folder: Path, code: str, **arguments: Any) -> dict[str, Any]:
    return await called(tool, command_context(folder), argv=["script", "-c", code], **arguments)


async def test_output_exit_code_and_evidence_come_back(tool: ExecRun, folder: Path, level: str) -> None:
    context = command_context(folder)
    result = await called(tool, context, argv=["cat", "-n", "notes.txt"])
    duration = result.pop("durationMs")
    assert result == {
        "stdout": "     1\tone\n     2\ttwo\n     3\tthree\n",
        "stderr": "",
        "exitCode": 0,
        "truncated": False,
    }
    assert 0 <= duration < 10_000
    (evidence,) = context.evidence
    assert evidence.attributes["confinement"] == level
    assert evidence.attributes["exit_code"] == "0"
    assert len(evidence.sha256) == 64


async def test_a_command_line_is_split_without_a_shell(tool: ExecRun, folder: Path) -> None:
    assert (await called(tool, command_context(folder), command="echo 'a  $HOME' b"))["stdout"] == "a  $HOME b\n"


@pytest.mark.parametrize("arguments", [{}, {"argv": ["true"], "command": "true"}])
async def test_exactly_one_way_to_name_the_command_is_taken(arguments: Any, folder: Path) -> None:
    error = await refused(ExecRun(confinement_of("rlimits")), command_context(folder), **arguments)
    assert error.kind is ErrorKind.INVALID_INPUT


async def test_a_failing_command_is_a_result(tool: ExecRun, folder: Path) -> None:
    assert (await called(tool, command_context(folder), argv=["false"]))["exitCode"] == 1
    result = await called(tool, command_context(folder), argv=["cat", "missing.txt"])
    assert result["exitCode"] == 1
    assert "No such file" in result["stderr"]
    assert (await script(tool, folder, "exit 7"))["exitCode"] == 7


async def test_death_by_a_signal_is_reported_as_a_shell_does(tool: ExecRun, folder: Path) -> None:
    assert (await script(tool, folder, "kill -9 $$"))["exitCode"] == 137


async def test_the_working_directory_is_a_folder_of_the_workspace(tool: ExecRun, folder: Path) -> None:
    assert (await called(tool, command_context(folder), argv=["pwd"]))["stdout"].strip() == str(folder)
    assert (await called(tool, command_context(folder), argv=["pwd"], cwd="sub"))["stdout"].strip() == str(
        folder / "sub"
    )
    assert (await called(tool, command_context(folder), argv=["cat", "../notes.txt"], cwd="sub"))["exitCode"] == 0
    for cwd, kind in [
        ("..", ErrorKind.PATH_OUTSIDE_SANDBOX),
        ("/", ErrorKind.PATH_OUTSIDE_SANDBOX),
        ("missing", ErrorKind.NOT_FOUND),
    ]:
        assert (await refused(tool, command_context(folder), argv=["pwd"], cwd=cwd)).kind is kind


async def test_a_working_directory_that_links_outside_is_refused(tool: ExecRun, folder: Path) -> None:
    (folder / "link").symlink_to("/etc")
    error = await refused(tool, command_context(folder), argv=["pwd"], cwd="link")
    assert error.kind is ErrorKind.PATH_OUTSIDE_SANDBOX


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "sub/../../outside.txt"])
async def test_a_path_outside_the_workspace_is_refused(tool: ExecRun, folder: Path, path: str) -> None:
    error = await refused(tool, command_context(folder), argv=["cat", path])
    assert error.kind is ErrorKind.PATH_OUTSIDE_SANDBOX


async def test_a_link_out_of_the_workspace_cannot_be_followed(tool: ExecRun, folder: Path, level: str) -> None:
    (folder / "link").symlink_to("../outside.txt")
    if level == "rlimits":
        assert (
            await refused(tool, command_context(folder), argv=["cat", "link"])
        ).kind is ErrorKind.PATH_OUTSIDE_SANDBOX
    else:
        result = await called(tool, command_context(folder), argv=["cat", "link"])
        assert (result["exitCode"], result["stdout"]) == (1, "")


@pytest.mark.promise("exec.grammar")
async def test_the_environment_is_made_from_nothing(
    tool: ExecRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_SECRET", "hunter2")
    result = await script(tool, folder, "env", env={"TOPIC": "birds"})
    names = dict(line.split("=", 1) for line in result["stdout"].splitlines())
    names.pop("PWD")
    assert names == {
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "COLOUR": "blue",
        "TOPIC": "birds",
    }


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "COLOUR", "BASH_ENV", "GIT_SSH_COMMAND"])
async def test_other_environment_variables_are_refused(folder: Path, name: str) -> None:
    tool = ExecRun(confinement_of("rlimits"))
    error = await refused(tool, command_context(folder), argv=["script", "-c", "env"], env={name: "x"})
    assert error.kind is ErrorKind.POLICY_DENIED


async def test_standard_input_is_empty_and_there_is_no_terminal(tool: ExecRun, folder: Path) -> None:
    result = await script(tool, folder, "cat; test -t 0 || echo none; ls /proc/self/fd")
    assert result["stdout"].startswith("none\n")
    assert set(result["stdout"].split()[1:]) <= {"0", "1", "2", "3"}


async def test_limits_of_the_sandbox_hold(tool: ExecRun, folder: Path) -> None:
    sandbox = Sandbox(command_file_bytes=4096, command_memory_bytes=200 * 1024 * 1024, command_cpu_s=7)
    context = command_context(folder, sandbox=sandbox)
    code = "ulimit -t; ulimit -v; ulimit -c; ulimit -n; head -c 9999 /dev/zero > big; echo $?"
    lines = (await called(tool, context, argv=["script", "-c", code]))["stdout"].split()
    assert lines[:4] == ["7", str(200 * 1024), "0", "256"]
    assert int(lines[4]) != 0
    assert (folder / "big").stat().st_size == 4096


async def test_a_command_that_eats_processor_time_is_ended(tool: ExecRun, folder: Path) -> None:
    context = command_context(folder, sandbox=Sandbox(command_cpu_s=1))
    result = await called(tool, context, argv=["script", "-c", "while :; do :; done"], timeoutS=20)
    assert result["exitCode"] in (128 + 9, 128 + 24)


async def test_lines_are_streamed_as_they_appear(tool: ExecRun, folder: Path) -> None:
    sink = RecordingSink()
    context = command_context(folder, sink=sink)
    await called(tool, context, argv=["script", "-c", "printf 'a\\nb'; echo c; echo e >&2; printf end"])
    by_stream = {
        name: b"".join(chunk.data for chunk in sink.chunks if chunk.stream == name) for name in ("stdout", "stderr")
    }
    assert by_stream == {"stdout": b"a\nbc\nend", "stderr": b"e\n"}
    assert all(chunk.data.endswith(b"\n") for chunk in sink.chunks if chunk.data != b"end")


async def test_long_output_is_cut_and_marked(tool: ExecRun, folder: Path) -> None:
    context = command_context(folder)
    result = await called(tool, context, argv=["seq", "1", "9999"], maxOutputChars=10)
    assert result["stdout"] == "1\n2\n3\n4\n5\n\n…[cut: 48888 bytes in all]"
    assert result["truncated"]
    assert context.truncated
    assert "first 10 characters each were kept: raise maxOutputChars" in context.evidence[-1].summary


async def test_output_that_is_no_text_is_still_returned(tool: ExecRun, folder: Path) -> None:
    assert (await script(tool, folder, r"printf 'a\377b'"))["stdout"] == "a\ufffdb"


async def test_a_timeout_names_what_was_written_until_then(tool: ExecRun, folder: Path) -> None:
    async def late(timeout_s: float) -> ToolError:
        argv = ["script", "-c", "echo begun; sleep 60"]
        return await refused(tool, command_context(folder), argv=argv, timeoutS=timeout_s)

    error = await overtaken(late, lambda error: error.details["stdout"] != "")
    assert error.kind is ErrorKind.TIMEOUT
    assert error.details["stdout"] == "begun\n"
    assert "check that before you repeat" in error.message
    assert "a longer timeoutS" in error.message


async def test_the_deadline_of_the_call_binds_too(tool: ExecRun, folder: Path) -> None:
    error = await refused(tool, command_context(folder, timeout_s=0.5), argv=["sleep", "600"])
    assert error.kind is ErrorKind.TIMEOUT
    assert "a later deadline" in error.message


async def test_a_flood_ends_the_command_and_memory_stays_bounded(tool: ExecRun, folder: Path) -> None:
    error = await refused(tool, command_context(folder), argv=["script", "-c", "yes"], maxOutputChars=100)
    assert error.kind is ErrorKind.EXECUTION_ERROR
    assert len(str(error.details["stdout"])) < 200
    assert "Request less output" in error.message


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


class NotifyingSink(RecordingSink):
    """Notifies of the first output."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def chunk(self, chunk: Chunk) -> None:
        super().chunk(chunk)
        self.begun.set()


@pytest.mark.promise("exec.ends-in-time")
async def test_cancelling_ends_the_command(tool: ExecRun, folder: Path, level: str) -> None:
    sink = NotifyingSink()
    context = command_context(folder, sink=sink)
    running = asyncio.ensure_future(called(tool, context, argv=["script", "-c", "echo $$ > pid; echo up; sleep 60"]))
    await sink.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if level == "rlimits":  # In the sandbox it has another number.
        pid = int((folder / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_no_descriptor_is_left_open(tool: ExecRun, folder: Path) -> None:
    async def some() -> None:
        await called(tool, context := command_context(folder), argv=["echo", "x"])
        await refused(tool, context, argv=["sleep", "60"], timeoutS=0.05)
        await refused(tool, context, argv=["cat", "/etc/passwd"])
        await refused(tool, context, argv=["nope"])
        context.close()

    await some()
    before = open_descriptors()
    for _ in range(5):
        await some()
    assert open_descriptors() == before


async def test_an_allowed_binary_that_is_missing_is_not_found(folder: Path) -> None:
    rule = CommandRule(name="gone", path="/opt/gone", end_of_options=False)
    error = await refused(ExecRun(confinement_of("rlimits")), command_context(folder, commands=(rule,)), argv=["gone"])
    assert error.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize("bubblewrap", ["", "/opt/no-bwrap", shutil.which("false")])
async def test_a_policy_that_requires_bubblewrap_refuses_without_it(folder: Path, bubblewrap: str) -> None:
    tool = ExecRun(Confinement(bubblewrap=bubblewrap, landlock=False))
    for sandbox in (
        Sandbox(require_bubblewrap=True),
        Sandbox(minimum="landlock"),
        Sandbox(minimum_for={"core/exec.*": "bubblewrap", "core/*": "landlock", "skill/*": "rlimits"}),
    ):
        context = command_context(folder, sandbox=sandbox)
        assert (await refused(tool, context, argv=["true"])).kind is ErrorKind.TOOL_UNAVAILABLE
    await called(tool, command_context(folder, sandbox=Sandbox(minimum_for={"skill/*": "bubblewrap"})), argv=["true"])
    error = await refused(tool, command_context(folder, sandbox=Sandbox(require_bubblewrap=True)), argv=["true"])
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert not error.is_retryable
    context = command_context(folder)
    assert (await called(tool, context, argv=["true"]))["exitCode"] == 0
    assert context.evidence[0].attributes["confinement"] == "rlimits"


@pytest.mark.promise("sandbox.hub-out-of-reach")
async def test_a_workspace_around_the_hubs_own_files_runs_no_command(folder: Path, level: str) -> None:
    (folder / "data").mkdir()
    (folder.parent / "link").symlink_to(folder / "data")
    for hidden in (folder / "data", folder, folder.parent / "link", folder / "data" / "keys.yaml"):
        tool = ExecRun(confinement_of(level), [str(hidden)])
        error = await refused(tool, command_context(folder), argv=["true"])
        assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    beside = ExecRun(confinement_of(level), [str(folder.parent), str(folder.parent / "other")])
    assert (await called(beside, command_context(folder), argv=["true"]))["exitCode"] == 0


async def test_inside_bubblewrap_there_is_only_the_workspace_and_no_network(folder: Path) -> None:
    tool = ExecRun(confinement_of("bubblewrap"))
    probe = "ls / /etc; cat /etc/passwd; cat ../outside.txt; touch /usr/x ../x; "
    probe += "cat /proc/net/dev; grep Cap /proc/self/status; echo in > made"
    result = await script(tool, folder, probe)
    seen = set(result["stdout"].split())
    assert {"usr", "proc", "dev"} <= seen
    assert not seen & {"home", "root", "var", "opt", "passwd", "outside", "eth0:"}
    assert "No such file" in result["stderr"]
    assert "Read-only file system" in result["stderr"]
    assert [line.split()[1] for line in result["stdout"].splitlines() if line.startswith("Cap")] == ["0" * 16] * 5
    assert (folder / "made").read_text(encoding="utf-8") == "in\n"
    assert not (folder.parent / "x").exists()


HUB = """
import asyncio, sys
from pathlib import Path
from tests.fakes.commands import command_context
from tests.fakes.tool_context import RecordingSink
from tests.fakes.util_context import called
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.tools.exec_run import ExecRun

class Telling(RecordingSink):
    def chunk(self, chunk):
        print("up", flush=True)

async def main(folder, bubblewrap, seconds, started):
    context = command_context(Path(folder), sink=Telling(), timeout_s=90)
    tool = ExecRun(Confinement(bubblewrap=bubblewrap))
    await called(tool, context, argv=["script", "-c", started.replace("600", seconds)], timeoutS=90)

asyncio.run(main(*sys.argv[1:]))
"""


LEAVING = "sleep 600 & (trap '' TERM HUP; setsid sleep 600 || sleep 600) & echo up; exec sleep 600"


@pytest.mark.promise("exec.ends-in-time", "sandbox.ends-with-the-hub")
def test_a_command_does_not_outlive_a_hub_that_is_killed(folder: Path, level: str) -> None:
    seconds = f"600{os.getpid()}"
    # By limits alone what a command leaves behind lives on: only the command itself is ended with the hub.
    started = "echo up; exec sleep 600" if level == "rlimits" else LEAVING
    arguments = [str(folder), confinement_of(level).bubblewrap, seconds, started]
    root = str(Path(__file__).parents[3])
    hub = subprocess.Popen([sys.executable, "-c", HUB, *arguments], cwd=root, stdout=subprocess.PIPE)
    with hub:
        assert hub.stdout is not None
        assert hub.stdout.readline() == b"up\n"
        commands = [os.pidfd_open(pid) for pid in running(f"sleep\0{seconds}\0".encode())]
        hub.kill()
    for command in commands:
        assert select.select([command], [], [], 60)[0]
        os.close(command)


def running(command_line: bytes) -> list[int]:
    """Processes with that command line; waits for the exec that comes after the first output."""
    for _ in range(1000):
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if read(path) == command_line]
        if found:
            return found
    return []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_inside_bubblewrap_processes_are_counted_in_their_own_namespace() -> None:
    """Root is exempt from the limit, so it is tried as nobody."""
    confinement = confinement_of("bubblewrap")
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    code = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait"
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        for processes, expected in ((8, True), (64, False)):
            sandbox = Sandbox(command_processes=processes)
            line = confinement.wrap_command("bubblewrap", ("/bin/sh", "-c", code), sandbox, folder, folder)
            ran = subprocess.run([*as_nobody, *line], capture_output=True, check=False)
            assert (b"fork" in ran.stderr) is expected


def test_the_contract_is_that_of_the_documents() -> None:
    assert ExecRun.capabilities == {EXECUTE_COMMAND}
    assert ExecRun.annotations.supports_streaming
    assert {(argument.name, argument.role.value) for argument in ExecRun.guarded} == {
        ("argv", "command"),
        ("command", "command"),
        ("cwd", "working_directory"),
    }
    assert ExecRun(Confinement()).unavailable_reason() == ""


async def test_a_plan_lists_what_would_run(folder: Path) -> None:
    tool, context = ExecRun(confinement_of("rlimits")), command_context(folder)
    effects = tool.effects(ExecRun.In(argv=["cat", "-n", "notes.txt"], cwd="sub", timeout_s=5), context)
    assert effects == ('Run `/usr/bin/cat -n -- notes.txt` in the folder "sub" of the workspace, for at most 5 s.',)
    with pytest.raises(ToolFailure) as refused:
        tool.effects(ExecRun.In(argv=["cat", "x"], cwd="nowhere"), context)
    assert refused.value.error.kind is ErrorKind.NOT_FOUND
    context.close()


@pytest.mark.promise("exec.no-shell")
def test_no_shipped_rule_runs_a_shell() -> None:
    paths = [rule.path for rule in TEST_COMMANDS if rule is not SCRIPT]
    assert json.dumps([path for path in paths if path.rsplit("/", 1)[-1].endswith("sh")]) == "[]"
