"""What confines code that is not the hub's: what a request shows is there, all else is not, on each level."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.ladders import NOBODY, ladder_of, ran
from tests.missing import give_up
from toolhub_service.app.doctor.machine import sandbox_check
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.sandbox import hidden
from toolhub_service.sandbox.hidden import with_other_names
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.request import Bounds, Level, SandboxRequest, interpreter_reads

LEVELS = ("landlock", "bubblewrap")
REPORT = """
import json, os, pathlib, sys
def tries(what):
    try: what(); return True
    except OSError: return False
has_status = tries(lambda: open("/proc/self/status"))
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status")) if has_status else {}
print(json.dumps({
    "cwd": os.getcwd(), "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "environment": dict(os.environ),
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb") if status],
    "given": sys.stdin.read(), "read": pathlib.Path(sys.argv[1], "a.txt").read_text(),
    "wrote_read": tries(lambda: pathlib.Path(sys.argv[1], "b.txt").write_text("b")),
    "wrote": tries(lambda: pathlib.Path("out.txt").write_text("out")),
    "descriptors": [fd for fd in range(3, 64) if tries(lambda: os.fstat(fd))],
    "etc": tries(lambda: open("/etc/passwd")),
}))
"""


@pytest.mark.parametrize("level", LEVELS)
async def test_a_program_sees_what_its_request_names_and_runs_as_nobody(level: Level, tmp_path: Path) -> None:
    ladder = await ladder_of(level, tmp_path)
    with ladder.run_folder() as folder, ladder.run_folder() as shown:
        written = Path(folder, "out.txt")
        put(Path(shown, "a.txt"), "shown")
        command = ("/usr/bin/python3", "-I", "-c", REPORT, shown)
        request = SandboxRequest(command, {"TOPIC": "bees"}, folder, reads=(shown,), writes=(folder,), has_input=True)
        finished = await ran(ladder, request, given=b"given")
        assert finished.exit_code == 0, finished.stderr.text(2000)
        seen = json.loads(finished.stdout.text(10_000)[0])
        assert (got(written), owner(written)) == ("out", ladder.user)
    environment = seen.pop("environment")
    assert environment["TOPIC"] == "bees"
    assert set(environment) <= {"TOPIC", "PWD", "LC_CTYPE"}
    assert set(seen.pop("capabilities")) <= {"0" * 16}
    assert seen == {
        "cwd": folder,
        "uid": ladder.user,
        "gid": ladder.user if os.geteuid() == 0 else os.getgid(),
        "groups": [] if os.geteuid() == 0 else seen["groups"],
        "given": "given",
        "read": "shown",
        "wrote_read": False,
        "wrote": True,
        "descriptors": [],
        "etc": False,
    }
    assert folder not in left_over()


@pytest.mark.parametrize("level", LEVELS)
async def test_an_inherited_descriptor_is_used_and_the_hubs_python_runs(level: Level, tmp_path: Path) -> None:
    ladder = await ladder_of(level, tmp_path)
    code = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(9).upper())"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hello")
        number = theirs.fileno()
        argv = (sys.executable, "-I", "-c", code, str(number))
        request = SandboxRequest(argv, {}, "/", reads=interpreter_reads(), descriptors=(number,))
        finished = await ran(ladder, request)
        ours.settimeout(60)
        assert (finished.exit_code, ours.recv(9)) == (0, b"HELLO"), finished.stderr.text(2000)


@pytest.mark.parametrize("level", LEVELS)
async def test_bounds_hold_also_a_hub_of_roots(level: Level, tmp_path: Path) -> None:
    ladder = await ladder_of(level, tmp_path)
    bounds = Bounds(cpu_s=1, memory_bytes=64 * 1024 * 1024, file_bytes=100_000, processes=20)
    many = "perl -e 'for (1..2000) { defined($p = fork) or die qq(fork\n); $p or sleep, exit }'"
    tried = {
        "processes": (many, "fork"),
        "memory": ("perl -e '$x = \"x\" x 500_000_000'", "memory"),
        "file": ("head -c 1000000 /dev/zero > big; wc -c < big >&2", "100000"),
        "processor": ("perl -e '1 while 1'; echo $? >&2", "137"),
    }
    if level == "bubblewrap":  # A second of processor time is enough once: both are set by the same program.
        del tried["processor"]
    for what, (code, expected) in tried.items():
        with ladder.run_folder() as folder:
            request = SandboxRequest(("/bin/bash", "-c", code), {}, folder, writes=(folder,), bounds=bounds)
            finished = await ran(ladder, request)
        assert expected in finished.stderr.text(100_000)[0], (what, finished.exit_code, finished.stderr.text(500))


async def test_files_of_the_hub_are_never_shown_under_any_name(tmp_path: Path) -> None:
    data, outside = tmp_path / "hub" / "data", tmp_path / "skills"
    room = data / "trees" / "one"
    for folder in (room, outside):
        folder.mkdir(parents=True)
    (outside / "to_data").symlink_to(data)
    (tmp_path / "to_hub").symlink_to(tmp_path / "hub")
    put(data / "audit.key", "key")
    (outside / "key").symlink_to(data / "audit.key")
    ladder = Ladder([str(data), str(tmp_path / "settings.yaml")], shown=[str(data / "trees")], user=NOBODY)
    if await ladder.level() is None:
        give_up(f"neither bubblewrap nor Landlock works here: apt-get install bubblewrap ({ladder.reasons})")
    named = [data, data / "audit.key", data.parent, tmp_path, Path("/"), Path("/proc"), Path("/proc/self/fd")]
    named += [outside / "to_data", outside / "key", tmp_path / "to_hub", outside / ".." / "hub", data / "trees" / ".."]
    named += [Path("/proc/self/root", str(data).lstrip("/")), Path("/dev"), tmp_path / "settings.yaml"]
    for path in named:
        request = SandboxRequest(("/bin/true",), {}, "/")
        for asked in (
            replace(request, reads=(str(path),)),
            replace(request, writes=(str(path),)),
        ):
            with pytest.raises(ToolFailure) as refused:
                async with ladder.confine(asked):
                    pytest.fail(f"shown: {path}")
            assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    async with ladder.confine(SandboxRequest(("/bin/true",), {}, "/", reads=(str(room),))) as confined:
        assert confined.evidence["confinement"] == confined.level


async def test_below_the_minimum_nothing_starts_and_the_refusal_states_why() -> None:
    nothing = Ladder(bubblewrap="", landlock=False)
    with pytest.raises(ToolFailure) as refused:
        async with nothing.confine(SandboxRequest(("/bin/true",), {}, "/")):
            pytest.fail("started")
    assert "only what landlock holds" in refused.value.error.message
    assert not refused.value.error.retryable
    assert set(nothing.reasons) == {"bubblewrap", "landlock"}
    if not landlock_abi():
        pytest.skip("this kernel has no Landlock: Linux 5.13 with CONFIG_SECURITY_LANDLOCK has it")
    with pytest.raises(ToolFailure) as refused:
        async with Ladder(bubblewrap="").confine(SandboxRequest(("/bin/true",), {}, "/"), minimum="bubblewrap"):
            pytest.fail("started")
    assert "only what bubblewrap holds" in refused.value.error.message


async def test_the_doctor_states_the_confinement_level_and_why_not_a_better_one() -> None:
    nothing = await sandbox_check(Ladder(bubblewrap="", landlock=False))
    assert (nothing.state.value, "refused" in nothing.text, "Landlock" in nothing.text) == ("warn", True, True)
    ladder = await ladder_of("landlock")
    weaker = await sandbox_check(ladder)
    assert weaker.text.startswith("landlock holds")
    assert "bubblewrap: bubblewrap is not installed, or switched off" in weaker.text
    assert ("THE HUB IS ROOT" in weaker.text) is (os.geteuid() == 0)
    best = await sandbox_check(await ladder_of("bubblewrap"))
    assert (best.state.value, str(ladder.user) in best.text) == ("ok", os.geteuid() == 0)


@pytest.mark.promise("sandbox.hub-out-of-reach")
def test_the_data_folder_is_known_by_every_mount_that_shows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = ["21 1 8:1 / / rw - ext4 /dev/sda rw", "22 21 8:2 / /srv rw - ext4 /dev/sdb rw"]
    lines += [
        "23 21 8:2 /hub /mnt/a\\040b rw - ext4 /dev/sdb rw",
        "24 21 8:2 /hub/data/keys /keys rw - ext4 /dev/sdb rw",
    ]
    lines += ["25 21 8:2 /other /other rw - ext4 /dev/sdb rw", "26 21 0:5 / /proc rw - proc proc rw"]
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join(lines))
    monkeypatch.setattr(hidden, "_MOUNTINFO", str(mountinfo))
    assert with_other_names(["/srv/hub/data"]) == ("/srv/hub/data", "/mnt/a b/data", "/keys")
    assert with_other_names(["/var/data"]) == ("/var/data",)


def put(path: Path, text: str) -> None:
    path.write_text(text)


def got(path: Path) -> str:
    return path.read_text()


def owner(path: Path) -> int:
    return path.stat().st_uid


def left_over() -> list[str]:
    """Folders of runs."""
    return [str(path) for path in Path(tempfile.gettempdir()).resolve().glob("toolhub-run-*")]


def test_run_folders_of_killed_hubs_are_removed_and_those_in_use_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = Path(tempfile.mkdtemp(prefix="toolhub-run-"))
    (left / "within").mkdir(mode=0o000)
    (tmp_path / "toolhub-run-link").symlink_to(tmp_path / "elsewhere")
    with Ladder().run_folder() as used, Ladder(swept_after_s=0.0).run_folder():
        assert not left.exists()
        assert Path(used).is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["toolhub-run-link"]
