"""What holds a command that is allowed to run: real programs that try to get out, on every level that works here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.commands import command_context, confinement_of
from tests.fakes.keyed_hub import keyed_hub, kind
from tests.fakes.util_context import called, refused
from toolhub_service.app import serving
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox import confinement
from toolhub_service.sandbox.process import Finished, run_process
from toolhub_service.tools.exec_run import ExecRun

LEVELS = ("rlimits", "landlock", "bubblewrap")
SYSCALLS = {"keyctl": (250, 219), "add_key": (248, 217), "bpf": (321, 280), "userfaultfd": (323, 282)}
SYSCALLS |= {"io_uring_setup": (425, 425), "perf_event_open": (298, 241), "mount": (165, 40), "unshare": (272, 97)}
SYSCALLS |= {"ptrace": (101, 117), "open_by_handle_at": (304, 265), "setns": (308, 268), "kexec_load": (246, 104)}


def workspace_in(folder: Path) -> Path:
    """A call's folder as deep as a hub makes it, with the hub's secret above it."""
    workspace = folder / "workspaces" / "robot" / "r"
    (workspace / "x" / "y" / "z").mkdir(parents=True)
    (workspace / "notes.txt").write_text("notes\n")
    (folder / "audit.key").write_text("c4nary-key\n")
    return workspace


@pytest.mark.parametrize("bubblewrap", ["off", ""])
async def test_a_climb_out_of_a_link_prints_no_key_of_the_hub(tmp_path: Path, bubblewrap: str) -> None:
    """Fails at befa727 with `off`: the guard takes `link/..` away as text, the kernel climbs from the link's target."""
    async with keyed_hub(tmp_path, tools={"bubblewrap": bubblewrap}) as keyed:
        wrote = await keyed.invoke("alice", "core/fs.writeText", {"path": "x/y/z/a.txt", "text": "a"}, request_id="r")
        assert wrote.ok
        paths = Paths(keyed.hub.hub.settings)
        (here,) = paths.workspaces.glob("*/*/x/y/z")
        (here / "link").symlink_to(here.parents[2])
        key = paths.audit_key.read_bytes()
        way_out = "x/y/z/link/../../../audit.key"
        for arguments in ({"argv": ["cat", way_out]}, {"argv": ["head", "-c", "99", "a.txt", f"./{way_out}"]}):
            result = await keyed.invoke("alice", "core/exec.run", arguments, request_id="r")
            assert not result.ok or json.loads(result.result_json)["stdout"] == "", result.result_json
            assert key.strip() not in result.SerializeToString()
        climbing = {"argv": ["cat", "../../../audit.key"], "cwd": "x/y/z/link/x/y/z"}
        assert kind(await keyed.invoke("alice", "core/exec.run", climbing, request_id="r")) == "PATH_OUTSIDE_SANDBOX"


@pytest.mark.parametrize("level", LEVELS)
async def test_a_path_with_climbs_reaches_the_program_as_it_was_checked(tmp_path: Path, level: str) -> None:
    workspace = workspace_in(tmp_path)
    tool = ExecRun(confinement_of(level))
    for path, cwd in (("x/../notes.txt", "."), ("../notes.txt", "x"), ("../../x/../notes.txt", "x/y")):
        result = await called(tool, command_context(workspace), argv=["cat", path], cwd=cwd)
        assert result["stdout"] == "notes\n"
    (workspace / "-n").write_text("dash\n")
    assert (await called(tool, command_context(workspace), argv=["cat", "x/../-n"]))["stdout"] == "dash\n"
    (workspace / "near").symlink_to("x/y/z")
    error = await refused(tool, command_context(workspace), argv=["cat", "../notes.txt"], cwd="near")
    assert error.kind is ErrorKind.PATH_OUTSIDE_SANDBOX


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
async def test_a_link_that_appears_after_the_judgement_is_not_followed(tmp_path: Path, level: str) -> None:
    """The race, won by the attacker: the link is there when the program starts. Fails at befa727 without bubblewrap."""
    workspace = workspace_in(tmp_path)
    (workspace / "won").symlink_to("../../..")
    seen = await output_of(level, workspace, "cat won/audit.key; echo x > won/planted; cat /etc/passwd; cat n*")
    assert seen == "notes\n"
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
async def test_a_command_reads_nothing_of_the_hub_process_and_signals_it_not(tmp_path: Path, level: str) -> None:
    pid = os.getpid()
    code = f"cat /proc/{pid}/environ; ls /proc/{pid}/root/; kill -0 {pid} && echo signalled"
    assert await output_of(level, workspace_in(tmp_path), code) == ""


@pytest.mark.parametrize("level", LEVELS)
async def test_calls_that_kernels_are_attacked_by_are_refused(tmp_path: Path, level: str) -> None:
    """At befa727 the kernel itself answered all but userfaultfd inside bubblewrap."""
    at = 0 if os.uname().machine == "x86_64" else 1
    asks = "".join(
        f"$r = syscall({numbers[at]}, 0, 0, 0, 0, 0); print qq({name} $!\\n);" for name, numbers in SYSCALLS.items()
    )
    seen = await output_of(level, workspace_in(tmp_path), f"/usr/bin/perl -e '{asks}'")
    assert seen.splitlines() == [f"{name} Operation not permitted" for name in SYSCALLS]


async def test_inside_bubblewrap_what_lies_in_memory_is_bounded(tmp_path: Path) -> None:
    """Fails at befa727: /tmp and /dev/shm take half of the machine's memory."""
    fill = "for i in 1 2 3; do head -c 500000 /dev/zero > $f/$i || break; done; cat $f/* | wc -c"
    fill = f"for f in /tmp /dev/shm; do {fill}; done"
    seen = await output_of("bubblewrap", workspace_in(tmp_path), fill, Sandbox(command_file_bytes=1_000_000))
    assert all(int(line) <= 1_003_520 for line in seen.split())  # whole pages
    assert (
        await output_of("bubblewrap", workspace_in(tmp_path / "b"), "touch /dev/x /dev/shm/y; ls /dev/x /dev/shm")
        == "/dev/shm:\ny\n"
    )


async def output_of(level: str, workspace: Path, code: str, sandbox: Sandbox | None = None) -> str:
    """What a shell prints that was started as a command is, unjudged."""
    return (await finished_command(level, workspace, ("/bin/sh", "-c", code), sandbox)).stdout.text(10_000)[0]


async def finished_command(
    level: str, workspace: Path, argv: Sequence[str], sandbox: Sandbox | None = None
) -> Finished:
    made, sandbox = confinement_of(level), sandbox or Sandbox()
    chosen = await made.level(sandbox, str(workspace))
    assert chosen == level
    folder = os.open(workspace, os.O_PATH)
    try:
        with made.program(chosen, argv, sandbox, str(workspace), (str(workspace), folder), {}) as program:
            return await run_process(
                program,
                deadline_s=asyncio.get_running_loop().time() + 60,
                keep_bytes=10_000,
                on_output=lambda lines, stream: None,
            )
    finally:
        os.close(folder)


def test_a_serving_hub_hides_its_memory_and_environment_from_other_processes_of_its_user(tmp_path: Path) -> None:
    """Fails at befa727: any program of the hub's user reads the environment. Both run without capabilities."""
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    serve = [sys.executable, "-m", "toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    ports = {"TOOLHUB_METRICS_LISTEN": "127.0.0.1:0", "TOOLHUB_SERVER_MCP_LISTEN": "127.0.0.1:0"}
    environment = {**os.environ, **ports}
    with subprocess.Popen([*bare, *serve], stdout=subprocess.PIPE, env=environment) as hub:
        try:
            assert hub.stdout is not None
            assert b"serving" in hub.stdout.readline() + hub.stdout.readline()
            own = subprocess.run([*bare, "cat", "/proc/self/environ"], capture_output=True, check=False)
            read = subprocess.run([*bare, "cat", f"/proc/{hub.pid}/environ"], capture_output=True, check=False)
        finally:
            hub.terminate()
    assert own.returncode == 0
    assert (read.stdout, read.returncode) == (b"", 1)


@pytest.mark.parametrize(("abi", "bubblewrap", "warnings"), [(0, "off", 1), (7, "off", 0), (0, "", 0)])
async def test_a_hub_warns_at_start_that_commands_are_not_confined(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    abi: int,
    bubblewrap: str,
    warnings: int,
) -> None:
    """`told`: warnings. There were none at befa727."""
    if not bubblewrap:
        confinement_of("bubblewrap")
    monkeypatch.setattr(confinement, "landlock_abi", lambda: abi)
    monkeypatch.setattr(serving, "landlock_abi", lambda: abi)
    async with keyed_hub(tmp_path, tools={"bubblewrap": bubblewrap}, logs={"level": "warning"}) as keyed:
        capfd.readouterr()
        await serving.warn_of_commands(keyed.hub.hub)
        assert capfd.readouterr().err.count("commands_unconfined") == warnings
