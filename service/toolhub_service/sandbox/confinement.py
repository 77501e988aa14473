"""Confines commands: by bubblewrap where it works, and always by resource limits.

Limits are set by prlimit(1), which replaces itself by the command: setting them from the parent after the start would
race with the command, a `preexec_fn` is not safe beside gRPC's threads, and a Python wrapper costs ten times as much
(/bin/true, p50: bare 0.3 ms, prlimit 0.6, setpriv + prlimit 0.95, Python 6.0, bubblewrap + prlimit 2.7). Inside the
sandbox prlimit comes last, so that the number of processes is counted in the sandbox's own user namespace.

Three levels, the first that works here:

bubblewrap (bwrap(1)): new user, pid, network, ipc, uts and cgroup namespaces, and none nested; /usr read-only, of /etc
only what the dynamic linker, alternatives and the local time need; the workspace read-write at its own place; /tmp and
/dev/shm bounded; all capabilities dropped; everything dies with the hub. landlock: the same folders and no TCP, checked
by the kernel for each path that is opened, but the hub's view of processes and its other networks. rlimits: the hub's
own view of disk and network; the tool refuses paths that are links. Without bubblewrap setpriv(1) ties a command's life
to the hub's. All three forbid new privileges and filter system calls (kernel_walls.py).
Containers often forbid user namespaces, so bubblewrap is tested once before it is used.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox.call_filter import call_filter
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.kernel_walls import (
    READ_AND_RUN,
    READ_AND_WRITE,
    filter_calls,
    forbid_new_privileges,
    landlock_abi,
)
from toolhub_service.sandbox.landlock_start import landlock_argv
from toolhub_service.sandbox.process import run_process
from toolhub_service.sandbox.request import Level


async def succeeds(probe: Program) -> bool:
    """Return whether it starts and ends successfully."""
    try:
        finished = await run_process(
            probe,
            deadline_s=asyncio.get_running_loop().time() + _PROBE_S,
            keep_bytes=0,
            on_output=lambda _lines, _stream: None,
        )
    except OSError:
        return False
    return finished.exit_code == 0


PROGRAM_FOLDERS = "/usr/bin:/bin:/usr/local/bin"
_OPEN_FILES = 256
_PROBE_S = 5.0
SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FROM_ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
# Root may write these by their mode alone, whatever namespace it is in, and core_pattern names a program that the
# machine's root runs; bubblewrap covers them only where it may write them itself.
_KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
PROCESSES = ("--proc", "/proc", *(word for path in _KERNEL_SETTINGS for word in ("--ro-bind-try", path, path)))
# No --new-session: a child already leads a session (process.py), and a sandbox in setup must die with its group.
NO_NAMESPACES_BELOW = ("--unshare-user", "--disable-userns")
_ISOLATION = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr")


class Confinement:
    """How commands are started on this machine. Made once; looks up the three programs in fixed folders."""

    def __init__(self, bubblewrap: str | None = None, *, landlock: bool = True) -> None:
        """`bubblewrap`: its absolute path, None to search for it, empty to do without.

        `landlock`: whether to use it.
        """
        self.prlimit = shutil.which("prlimit", path=PROGRAM_FOLDERS) or ""
        self._setpriv = shutil.which("setpriv", path=PROGRAM_FOLDERS) or ""
        self.bubblewrap = bubblewrap if bubblewrap is not None else shutil.which("bwrap", path=PROGRAM_FOLDERS) or ""
        self._system = system_folders() if self.bubblewrap else ()
        self._level: Level | None = None
        self._without_bubblewrap: Level = "landlock" if landlock and landlock_abi() else "rlimits"
        self.nested: tuple[str, ...] = NO_NAMESPACES_BELOW
        """Option by which bubblewrap itself forbids further user namespaces; the filter of system calls always does."""

    async def level(self, sandbox: Sandbox, workspace: str) -> Level:
        """Return the best level that works here; tried once, with the mounts of a real call."""
        if self._level is None:
            works = await self._sandbox_works(sandbox, workspace)
            if not works and self.nested:
                self.nested = ()
                works = await self._sandbox_works(sandbox, workspace)
            self._level = "bubblewrap" if works else self._without_bubblewrap
        return self._level

    @contextmanager
    def program(
        self,
        level: Level,
        argv: Sequence[str],
        sandbox: Sandbox,
        workspace: str,
        folder: tuple[str, int],
        environment: Mapping[str, str],
    ) -> Iterator[Program]:
        """Yield the program to start within the context. `folder`: the working directory, by path and by descriptor."""
        path, descriptor = folder
        if level == "bubblewrap":
            with readable(call_filter()) as calls:
                line = self.wrap_command(level, argv, sandbox, workspace, path, calls=calls)
                yield Program(line, environment, "/", pass_fds=(calls,) if calls >= 0 else ())
            return
        # The descriptor that was opened beneath the workspace, wherever its name points by now.
        place = f"/proc/self/fd/{descriptor}"
        line = self.wrap_command(level, argv, sandbox, workspace, path)
        if level == "landlock":
            yield Program(_in_landlock(line, argv[0], workspace, environment), environment, place)
        else:
            yield Program(line, environment, place, confine=_confine)

    def wrap_command(
        self, level: Level, argv: Sequence[str], sandbox: Sandbox, workspace: str, folder: str, *, calls: int = -1
    ) -> tuple[str, ...]:
        """Return the whole command line. `workspace` and `folder` (the working directory in it) are absolute paths.

        `calls`: a descriptor from which bubblewrap reads the filter of system calls; without one there is no filter.
        """
        if level != "bubblewrap":
            tied = (self._setpriv, "--no-new-privs", "--pdeathsig", "KILL", *_without_capabilities(), "--")
            tied = tied if self._setpriv else ()
            return (*tied, *self._limits(sandbox, tasks_now() + sandbox.command_processes), *argv)
        limits = self._limits(sandbox, sandbox.command_processes)
        filtered = ("--seccomp", str(calls)) if calls >= 0 else ()
        return (
            *self._bubblewrap_argv(argv[0], workspace, folder, sandbox.command_file_bytes, filtered),
            *limits,
            *argv,
        )

    async def _sandbox_works(self, sandbox: Sandbox, workspace: str) -> bool:
        if not self.bubblewrap:
            return False
        argv = (self.prlimit, "--version")
        # bubblewrap may be missing, or the kernel may refuse it: either way this level does not work.
        with suppress(OSError), self.program("bubblewrap", argv, sandbox, workspace, (workspace, -1), {}) as program:
            return await succeeds(program)
        return False

    def _bubblewrap_argv(
        self, binary: str, workspace: str, folder: str, room_bytes: int, filtered: tuple[str, ...]
    ) -> tuple[str, ...]:
        room = ("--size", str(room_bytes), "--tmpfs")
        mounts = (*PROCESSES, "--dev", "/dev", *room, "/dev/shm", "--remount-ro", "/dev", *room, "/tmp")  # noqa: S108 - the sandbox's own
        return (
            self.bubblewrap,
            *self.nested,
            *_ISOLATION,
            *filtered,
            *self._system,
            *("--ro-bind-try", binary, binary),
            *mounts,
            *("--bind", workspace, workspace),
            *("--remount-ro", "/", "--chdir", folder, "--"),
        )

    def _limits(self, sandbox: Sandbox, processes: int) -> tuple[str, ...]:
        """Return prlimit and its flags, soft and hard alike.

        Root is exempt from the number of processes (setrlimit(2)).
        """
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


def _without_capabilities() -> tuple[str, ...]:
    """Return setpriv's flags by which a command of root's has no capability, as inside bubblewrap."""
    return ("--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()


def system_folders() -> tuple[str, ...]:
    """Return mounts for /bin, /lib and the like: links where the system has links (merged /usr), else folders."""
    mounts: list[str] = []
    for name in SYSTEM_LINKS:
        path = Path(name)
        if path.is_symlink():
            mounts += ("--symlink", os.readlink(path), name)  # noqa: PTH115 - the link as written
        elif path.is_dir():
            mounts += ("--ro-bind", name, name)
    for name in FROM_ETC:
        mounts += ("--ro-bind-try", name, name)
    return tuple(mounts)


def tasks_now() -> int:
    """Return the tasks on the machine (proc(5), loadavg): RLIMIT_NPROC counts all of the user's, including the hub's
    threads."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])


def _in_landlock(line: Sequence[str], binary: str, workspace: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    named = [(os.path.realpath(path), READ_AND_RUN) for path in ("/usr", *SYSTEM_LINKS, *FROM_ETC, binary)]
    named += [(path, READ_AND_WRITE) for path in DEVICES]
    return landlock_argv(
        line,
        named=named,
        writes=[workspace],
        calls=call_filter(alone=True, families=()),
        environment=environment,
    )


def _confine() -> None:
    """Install the filter on this thread, for its command."""
    forbid_new_privileges()
    filter_calls(call_filter(families=()))


@contextmanager
def readable(content: bytes) -> Iterator[int]:
    """Yield a descriptor from which it can be read once; -1 for nothing."""
    if not content:
        yield -1
        return
    descriptor = os.memfd_create("calls")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
