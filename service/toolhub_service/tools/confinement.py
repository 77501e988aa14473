"""What stands between a command and the machine: bubblewrap where it works, resource limits always.

Limits are set by prlimit(1), which replaces itself by the command: setting them from the parent after the start would
race with the command, a `preexec_fn` is not safe beside gRPC's threads, and a Python wrapper costs ten times as much
(/bin/true, p50: bare 0.3 ms, prlimit 0.6, setpriv + prlimit 0.95, Python 6.0, bubblewrap + prlimit 2.7). Inside the
sandbox prlimit comes last, so that the number of processes is counted in the sandbox's own user namespace.

bubblewrap (bwrap(1)): a new user, pid, network, ipc, uts and cgroup namespace; /usr read-only, nothing of /etc but what
the dynamic linker, alternatives and the local time need; the workspace read-write at its own place; all capabilities
dropped; everything dies with the hub. Without it (`rlimits`) a command runs with the hub's own view of the disk and the
network: setpriv(1) forbids new privileges and ties its life to the hub's, and the tool refuses paths that are links.
Containers often forbid user namespaces, so bubblewrap is tried once before it is believed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from toolhub_service.domain.constraints import Sandbox
from toolhub_service.tools.child import Program
from toolhub_service.tools.process import run_process

Level = Literal["bubblewrap", "rlimits"]

_PROGRAM_FOLDERS = "/usr/bin:/bin:/usr/local/bin"
_OPEN_FILES = 256
_PROBE_S = 5.0
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FROM_ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
# No --new-session: a child leads a session already (child.py), and what is still being set up must die with its group.
_ISOLATION = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr")


class Confinement:
    """How commands are started on this machine. Made once; looks the three programs up in fixed folders."""

    def __init__(self, bubblewrap: str | None = None) -> None:
        """`bubblewrap`: its absolute path, None to look for it, empty to do without it."""
        self.prlimit = shutil.which("prlimit", path=_PROGRAM_FOLDERS) or ""
        self._setpriv = shutil.which("setpriv", path=_PROGRAM_FOLDERS) or ""
        self.bubblewrap = bubblewrap if bubblewrap is not None else shutil.which("bwrap", path=_PROGRAM_FOLDERS) or ""
        self._system = _system_folders() if self.bubblewrap else ()
        self._level: Level | None = None

    async def level(self, sandbox: Sandbox, workspace: str) -> Level:
        """The best that works here; tried once, with the mounts of a real call."""
        if self._level is None:
            self._level = "bubblewrap" if await self._sandbox_works(sandbox, workspace) else "rlimits"
        return self._level

    def wrapped(
        self, level: Level, argv: Sequence[str], sandbox: Sandbox, workspace: str, folder: str
    ) -> tuple[str, ...]:
        """The whole command line. `workspace` and `folder` (the working directory in it) are absolute paths."""
        if level == "rlimits":
            tied = (self._setpriv, "--no-new-privs", "--pdeathsig", "KILL", "--") if self._setpriv else ()
            return (*tied, *self._limits(sandbox, _tasks_now() + sandbox.command_processes), *argv)
        limits = self._limits(sandbox, sandbox.command_processes)
        return (*self._sandboxed(argv[0], workspace, folder), *limits, *argv)

    async def _sandbox_works(self, sandbox: Sandbox, workspace: str) -> bool:
        if not self.bubblewrap:
            return False
        try:
            line = self.wrapped("bubblewrap", (self.prlimit, "--version"), sandbox, workspace, workspace)
            finished = await run_process(
                Program(line, {}, "/"),
                deadline_s=asyncio.get_running_loop().time() + _PROBE_S,
                keep_bytes=0,
                on_output=lambda _lines, _stream: None,
            )
        except OSError:
            return False
        return finished.exit_code == 0

    def _sandboxed(self, binary: str, workspace: str, folder: str) -> tuple[str, ...]:
        mounts = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", workspace, workspace)  # noqa: S108 - the sandbox's own
        return (
            self.bubblewrap,
            *_ISOLATION,
            *self._system,
            "--ro-bind-try",
            binary,
            binary,
            *mounts,
            "--chdir",
            folder,
            "--",
        )

    def _limits(self, sandbox: Sandbox, processes: int) -> tuple[str, ...]:
        """prlimit and its flags, soft and hard alike. Root is exempt from the number of processes (setrlimit(2))."""
        return (
            self.prlimit,
            f"--cpu={sandbox.command_cpu_s}",
            f"--as={sandbox.command_memory_bytes}",
            f"--fsize={sandbox.command_file_bytes}",
            f"--nproc={processes}",
            f"--nofile={_OPEN_FILES}",
            "--core=0",
            "--",
        )


def _system_folders() -> tuple[str, ...]:
    """Mounts for /bin, /lib and the like: links where the system has links (merged /usr), else folders."""
    mounts: list[str] = []
    for name in _SYSTEM_LINKS:
        path = Path(name)
        if path.is_symlink():
            mounts += ("--symlink", os.readlink(path), name)  # noqa: PTH115 - the link as written
        elif path.is_dir():
            mounts += ("--ro-bind", name, name)
    for name in _FROM_ETC:
        mounts += ("--ro-bind-try", name, name)
    return tuple(mounts)


def _tasks_now() -> int:
    """Tasks on the machine (proc(5), loadavg): RLIMIT_NPROC counts all of the user's, the hub's threads among them."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
