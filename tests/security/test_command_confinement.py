"""What holds a command that is allowed to run: real programs that try to get out, on every level that works here."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.commands import command_context, confinement_of
from tests.fakes.keyed_hub import keyed_hub, kind
from tests.fakes.ladders import ladder_of, ran
from tests.fakes.langchain_source import gone
from tests.fakes.util_context import called, refused
from toolhub_service.app import serving
from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox import confinement
from toolhub_service.sandbox.process import Finished, run_process
from toolhub_service.sandbox.request import Bounds, Level, SandboxRequest
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


@dataclass(slots=True)
class ForbiddenResources:
    """What a confined program must not reach: made by the test, given to the probes by name."""

    key: Path
    outside: Path
    udp: socket.socket
    given: dict[str, Any]

    def untouched(self) -> None:
        status = self.key.stat()
        assert (status.st_mode & 0o777, status.st_uid, self.key.read_text()) == (0o600, os.geteuid(), "c4nary")
        assert status.st_mtime > 1_000
        assert os.listxattr(self.key) == []
        assert self.key.parent.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in self.key.parent.iterdir()} <= {"audit.key", "workspaces"}
        assert list(self.outside.iterdir()) == []
        with pytest.raises(BlockingIOError):
            self.udp.recv(99)


@contextmanager
def surroundings(folder: Path, user: int) -> Iterator[ForbiddenResources]:
    hub, outside = folder / "hub", folder / "outside"
    hub.mkdir(mode=0o700)
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    key = hub / "audit.key"
    key.write_text("c4nary")
    key.chmod(0o600)
    name, libc = f"toolhub-{os.getpid()}-{id(folder)}", ctypes.CDLL(None)
    segment_key = id(folder) & 0x7FFFFFFF
    segment = libc.shmget(segment_key, 4096, 0o1666)
    with ExitStack() as stack:
        tcp, udp = stack.enter_context(socket.socket()), stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        abstract, path = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        for made, address in ((tcp, ("127.0.0.1", 0)), (udp, ("127.0.0.1", 0)), (abstract, f"\0{name}")):
            made.bind(address)
        path.bind(str(outside.parent / "s"))
        (outside.parent / "s").chmod(0o777)
        for made in (tcp, abstract, path):
            made.listen()
        udp.setblocking(False)
        as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": ()} if user != os.geteuid() else {}
        victim = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], **as_user))
        stack.callback(victim.kill)
        stack.callback(libc.shmctl, segment, 0, None)
        given = {
            "key": str(key),
            "outside": str(outside),
            "hub": os.getpid(),
            "victim": victim.pid,
            "abstract": name,
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "path": str(outside.parent / "s"),
            "secret": "s3cret-of-the-hub",
            "segment_key": segment_key,
            "marker": f"600.{id(folder)}",
        }
        yield ForbiddenResources(key, outside, udp, given)


def of_marker(marker: str) -> list[int]:
    """Processes that were left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if marker.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def open_the_way(folder: Path) -> None:
    """To other users: what they do not reach is what the sandbox keeps from them."""
    for place in (folder, *folder.parents[:2]) if os.geteuid() == 0 else ():
        place.chmod(0o711)


PROBES = Path(__file__).with_name("escape_probes.py").read_text()


@pytest.mark.promise("sandbox.no-escape")
@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
@pytest.mark.parametrize("kind", ["script", "command"])
async def test_no_escape_of_the_corpus_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, level: Level
) -> None:
    """At 4ed893b: datagrams, sockets by path, attributes by path, limits of others, the clock, what left its group."""
    monkeypatch.setenv("TOOLHUB_SECRET", "s3cret-of-the-hub")
    open_the_way(tmp_path)
    ladder = await ladder_of(level, tmp_path / "hub")
    user = ladder.user if kind == "script" else os.geteuid()
    with surroundings(tmp_path, user) as around, ladder.run_folder() as folder:
        argv = ("/usr/bin/python3", "-I", "-c", PROBES, json.dumps({**around.given, "other_names": []}))
        if kind == "script":
            bounds = Bounds(processes=100)
            finished = await ran(ladder, SandboxRequest(argv, {}, folder, writes=(folder,), bounds=bounds))
        else:
            workspace = around.key.parent / "workspaces"
            workspace.mkdir()
            finished = await finished_command(level, workspace, argv)
        report = json.loads(finished.stdout.text(100_000)[0] or "null")
        assert report is not None, finished.stderr.text(3_000)
        assert report["escaped"] == {}
        assert report["tried"] >= 25
        around.untouched()
        assert all([await gone(pid) for pid in of_marker(around.given["marker"])])


def test_a_serving_hub_hides_its_memory_and_environment_from_other_processes_of_its_user(tmp_path: Path) -> None:
    """Fails at befa727: any program of the hub's user reads the environment. Both run without capabilities."""
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    serve = [sys.executable, "-m", "toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    environment = {**os.environ, "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
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
