"""Checks whether this machine is fit for a hub. None leaves anything changed or raises."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from toolhub_service import __version__
from toolhub_service.app.doctor import Finding, fail, ok, shown_size, warn
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.script_python import ScriptPython
from toolhub_service.tools.disk_space.ballast import Ballast
from toolhub_service.tools.disk_space.disk_room import reserve_of
from toolhub_service.tools.workspace.opening import best_opening, open_beneath

_PACKAGES = ("grpcio", "protobuf", "msgspec", "jsonschema-rs", "common-expression-language", "google-re2")
_PYTHON_MIN = (3, 11)
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph")
_LEAST_BYTES = 1024**2
"""Some thousand events of the audit log, where no reserve is kept for it."""
_SCARCE = 2
"""A warning comes while less than so many times the reserve is free."""
_PROBE_S = 5.0
_ABI_WITH_TCP = 4


def machine_checks(data_dir: Path, bubblewrap: str | None, reserve_bytes: int = 0) -> Iterator[Finding]:
    """Yield the checks; `bubblewrap` as Confinement takes it: its path, None to search for it, empty to do without.
    `reserve_bytes`: as `data_dir_checks`."""
    yield _python()
    yield ok("versions", ", ".join([f"tool-hub {__version__}", f"sqlite {sqlite3.sqlite_version}", *_versions()]))
    yield from data_dir_checks(data_dir, reserve_bytes)
    yield _opening()
    confinement = Confinement(bubblewrap)
    yield _prlimit(confinement)
    yield _commands(confinement, is_wanted=bubblewrap != "")
    yield _time_zones()


def data_dir_checks(data_dir: Path, reserve_bytes: int = 0) -> Iterator[Finding]:
    """Check that the folder can be written, its file system, and the free space; `reserve_bytes` of it are not for
    callers."""
    # The folder may be made at the first start: what counts is its future parent.
    standing = next(folder for folder in (data_dir, *data_dir.absolute().parents) if folder.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        return  # keeps the hub from starting, and `start_checks` tells
    kind = file_system_of(standing)
    will_be = "" if data_dir.exists() else ", made at the first start"
    if kind in _NETWORK_FILE_SYSTEMS:
        advice = "Put it on a local disk: SQLite's write-ahead log needs shared memory and real locks."
        yield fail("data folder", f"{data_dir} lies on {kind}, a network file system", advice)
    else:
        yield ok("data folder", f"{data_dir} on {kind}{will_be}")
    usage = shutil.disk_usage(standing)
    # As the hub counts: its own file that keeps a part of the reserve is free space.
    free_bytes = usage.free + Ballast(data_dir, reserve_bytes).bytes_on_disk_of(standing)
    kept_bytes = reserve_of(usage.total, reserve_bytes)
    text = f"{shown_size(free_bytes)} free"
    if free_bytes < kept_bytes:
        reserve = (
            f"less than the reserve of {shown_size(kept_bytes)} (storage.reserve_bytes): callers can store nothing"
        )
        yield fail("disk space", f"{text}, {reserve}", "Make room, or set workspace.keep_days and artifacts.ttl_s.")
    elif free_bytes < _LEAST_BYTES:
        yield fail("disk space", text, "Make room: without space for the audit log no call may run.")
    elif free_bytes < _SCARCE * kept_bytes:
        advice = "Make room before callers can store nothing."
        yield warn("disk space", f"{text}; the reserve begins at {shown_size(kept_bytes)}", advice)
    else:
        yield ok("disk space", text)


def file_system_of(folder: Path) -> str:
    """Return the type of the file system, such as `ext4`, of the longest mount point above the folder (proc(5),
    mountinfo)."""
    best, found = "", "an unknown file system"
    path = str(folder.resolve())
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        mount = words[4]
        is_above = mount in ("/", path) or path.startswith(f"{mount}/")
        if is_above and len(mount) >= len(best):
            # The type follows a lone dash, after a number of optional fields (proc_pid_mountinfo(5)).
            best, found = mount, words[words.index("-") + 1]
    return found


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.release()}"
    if sys.version_info < _PYTHON_MIN:
        return fail("python", text, "Install Python 3.11 or newer.")
    return ok("python", text)


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} missing"


def _opening() -> Finding:
    if best_opening() is open_beneath:
        return ok("file opening", "openat2(2) with RESOLVE_BENEATH")
    advice = "No action is needed; Linux 5.6 without a seccomp filter against openat2 follows links that stay inside."
    return warn(
        "file opening", "this kernel has no openat2(2): paths are opened step by step, and no link is followed", advice
    )


def _prlimit(confinement: Confinement) -> Finding:
    if confinement.prlimit:
        return ok("prlimit", confinement.prlimit)
    return warn("prlimit", "not installed", "Install util-linux to let commands run.", "core/exec.run")


def _commands(confinement: Confinement, *, is_wanted: bool) -> Finding:
    """Report which of the three levels confines commands here, and why not a better one."""
    if not is_wanted:
        problem, advice = "switched off by tools.bubblewrap", "Remove the setting to have commands confined by it."
    elif not confinement.bubblewrap:
        problem, advice = "not installed", "Install bubblewrap."
    else:
        problem = _bubblewrap_problem(confinement)
        advice = "Allow user namespaces, in a container by its seccomp or security profile."
        if not problem:
            return ok("bubblewrap", f"{confinement.bubblewrap} confines commands")
        problem = f"does not work here ({problem})"
    if abi := landlock_abi():
        held = "Landlock confines commands to the workspace and the system's folders"
        network = "" if abi >= _ABI_WITH_TCP else "; this kernel's keeps them from no network"
        text = f"{problem}; {held} (ABI {abi}{network})"
        return warn("bubblewrap", text, advice) if is_wanted else ok("bubblewrap", text)
    text = f"{problem}, and this kernel has no Landlock: COMMANDS SEE THE HUB'S OWN DISK AND NETWORK"
    return warn("bubblewrap", text, f"{advice} Until then set `sandbox: {{require_bubblewrap: true}}` in the policy.")


async def scripts_check(python: ScriptPython) -> Finding:
    """Try whether scripts of skills start in the sandbox."""
    if why := await python.problem():
        text, _, advice = why.partition(". ")
        advice = advice or "Mend it, or set `skills.python` to another Python."
        return warn("scripts", text, advice, "scripts of skills")
    return ok("scripts", f"{(await python.find()).path} runs scripts of skills in the sandbox")


async def sandbox_check(ladder: Ladder) -> Finding:
    """Report which level confines scripts of skills and programs, and why not a better one."""
    level = await ladder.level()
    why = "; ".join(f"{name}: {reason}" for name, reason in ladder.reasons.items())
    whose = f"user {ladder.user}" if os.geteuid() == 0 else "the hub's own user"
    if level == "bubblewrap":
        return ok("sandbox", f"{level} holds skills and programs, which run as {whose}")
    if level is None:
        advice = "Install bubblewrap, or use Linux 5.13 or newer with Landlock."
        return warn("sandbox", f"nothing here can hold them, so skills and programs are refused ({why})", advice)
    is_root = os.geteuid() == 0
    advice = "Install bubblewrap, and allow user namespaces, in a container by its seccomp or security profile."
    advice = f"Run the hub as a user of its own. {advice}" if is_root else advice
    root = "; THE HUB IS ROOT WITHOUT BUBBLEWRAP" if is_root else ""
    return warn("sandbox", f"{level} holds skills and programs, which run as {whose} ({why}){root}", advice)


def _bubblewrap_problem(confinement: Confinement) -> str:
    """Return bubblewrap's own error; empty when it works."""
    problem = ""
    try:
        with tempfile.TemporaryDirectory(prefix="toolhub-doctor-") as workspace:
            # Forbidding further namespaces needs bubblewrap 0.8; an older one confines equally well without that.
            for nested in (confinement.nested, ()):
                confinement.nested = nested
                line = confinement.wrap_command("bubblewrap", ("/bin/true",), Sandbox(), workspace, workspace)
                ran = subprocess.run(line, capture_output=True, text=True, timeout=_PROBE_S, check=False)  # noqa: S603 - the hub's own
                if ran.returncode == 0:
                    return ""
                problem = (ran.stderr.strip().splitlines() or [f"exit {ran.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as failed:
        return type(failed).__name__
    return problem


def _time_zones() -> Finding:
    try:
        ZoneInfo("Asia/Shanghai")
    except ZoneInfoNotFoundError:
        return warn("time zones", "no time zone data", "Install the package tzdata.")
    return ok("time zones", "known")
