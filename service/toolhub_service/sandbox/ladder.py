"""Starts programs that are not the hub's own, with the best confinement that this machine has, or not at all.

Of two levels it uses the first that works here. bubblewrap(1): own namespaces for processes, network, IPC and mounts;
the system read-only, its own /tmp, what the request names, and nothing else. Landlock (landlock(7)): the same files,
checked by the kernel, no network, but all processes of the machine are visible. Both drop to an unprivileged user when
the hub is root, forbid new privileges, filter system calls and set limits of resources (confinement.py).

When the hub is root, root makes the mounts, so that nothing on the way to a folder need be open to others; the program
is another user's from its first instruction, so that the limit of processes holds and its files are not root's. Under
Landlock, too, root shows by mounts what lies below closed folders (opened_ways.py). A root that may make no mounts
becomes that user before bubblewrap starts, and refuses a program that needs what this user cannot reach.

The hub's own folders and files are never shown: a request that names them is refused, on both levels.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.sandbox.call_filter import call_filter
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.confinement import (
    DEVICES,
    FROM_ETC,
    NO_NAMESPACES_BELOW,
    PROCESSES,
    PROGRAM_FOLDERS,
    SYSTEM_LINKS,
    readable,
    succeeds,
    system_folders,
    tasks_now,
)
from toolhub_service.sandbox.hidden import lies_in, with_other_names
from toolhub_service.sandbox.kernel_walls import (
    READ_AND_RUN,
    READ_AND_WRITE,
    landlock_abi,
)
from toolhub_service.sandbox.landlock_start import landlock_argv
from toolhub_service.sandbox.opened_ways import closed_folders, may
from toolhub_service.sandbox.process import run_process
from toolhub_service.sandbox.request import LEVELS, Level, SandboxRequest, too_weak

_Method = Literal["mounts by root", "user before", "own user"]
_SEPARATE = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
# For setpriv, and to enter the working folder, which may be the user's alone; gone when the program starts.
_CAPABILITIES = ("setuid", "setgid", "dac_read_search")
_INHERITS_NOTHING = "--inh-caps=" + ",".join(f"-{name}" for name in _CAPABILITIES)
_NEVER_SHOWN = ("/proc", "/sys", "/dev")
_FOLDER_PREFIX = "toolhub-run-"
_TRIAL_S = 30.0
_TRIAL_BYTES = 2_000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Confined:
    """A program to start by `run_process` or `spawn`, and its confinement."""

    level: Level
    program: Program
    user: int
    """Id of the user who owns its processes and files."""

    @property
    def evidence(self) -> dict[str, str]:
        """Return attributes for the evidence of a call."""
        return {"confinement": self.level, "user": str(self.user)}


class Unreachable(Exception):
    """Cause of a refusal: what the program's user cannot reach, and what an operator does about it."""


class Ladder:
    """The levels of this machine. Made once; tests each before using it."""

    def __init__(
        self,
        hidden: Sequence[str] = (),
        *,
        shown: Sequence[str] = (),
        user: int | None = None,
        bubblewrap: str | None = None,
        landlock: bool = True,
        swept_after_s: float = 60.0,
        reserve_bytes: int = 0,
    ) -> None:
        """`hidden`: the hub's folders and files. `shown`: folders within them that requests may name.

        `user`: id of the user that programs run as if the hub is root (group of the same number), None to stay root.
        `bubblewrap`: its absolute path, None to look for it, empty to do without it. `swept_after_s`: age of folders
        that killed hubs have left. `reserve_bytes`: what programs must leave free of the disk of their folders.
        """
        self.user = user if user and os.geteuid() == 0 else os.geteuid()
        self.reserve_bytes = reserve_bytes
        self.reasons: dict[Level, str] = {}
        """Why a level does not work here; known after `level`."""
        self._drops = self.user != os.geteuid()
        self._hidden = tuple(hidden)
        self._shown = tuple(os.path.realpath(path) for path in shown)
        self._prlimit = shutil.which("prlimit", path=PROGRAM_FOLDERS) or ""
        self._setpriv = shutil.which("setpriv", path=PROGRAM_FOLDERS) or ""
        self._bubblewrap = bubblewrap if bubblewrap is not None else shutil.which("bwrap", path=PROGRAM_FOLDERS) or ""
        self._landlock = landlock
        self._system = system_folders()
        self._method: _Method | None = None
        self._opens_ways: bool | None = None
        """Whether root may make mounts for Landlock's programs; None: not tried yet."""
        self._namespaces: tuple[str, ...] = NO_NAMESPACES_BELOW
        self._level: Level | None = None
        self._trying = asyncio.Lock()
        self._has_swept = False
        self._swept_after_s = swept_after_s

    def terms(self) -> dict[str, Any]:
        """Return the parameters from which another process of the hub makes the same ladder."""
        return {
            "hidden": self._hidden,
            "shown": self._shown,
            "user": self.user if self._drops else None,
            "bubblewrap": self._bubblewrap,
            "landlock": self._landlock,
        }

    async def level(self) -> Level | None:
        """Return the best level that works here; None when none does. Tested once."""
        async with self._trying:
            if self._level is None and not self.reasons:
                self._level = await self._best()
        return self._level

    @asynccontextmanager
    async def confine(self, request: SandboxRequest, *, minimum: Level = "landlock") -> AsyncIterator[Confined]:
        """Yield the program to start within the context.

        Raises ToolFailure TOOL_UNAVAILABLE when it cannot be confined.

        `minimum`: the level that policy demands (`Sandbox.minimum_of`); never less than Landlock.
        """
        level = await self.level()
        minimum = max(minimum, "landlock", key=LEVELS.index)
        if refusal := too_weak("This tool", level, minimum):
            raise refusal
        assert level is not None
        self._check_paths(request)
        closed: tuple[str, ...] = ()
        if level == "landlock" or self._method == "user before":
            closed = await self._closed_to(request, level)
        if level == "bubblewrap":
            with readable(call_filter()) as calls:
                yield Confined(level, self._in_bubblewrap(request, calls), self.user)
        else:
            yield Confined(level, self._in_landlock(request, closed), self.user)

    async def why_not_started(self, request: SandboxRequest) -> str:
        """Return why the program does not start here and end successfully, for operators; empty: it does."""
        if await self.level() is None:
            why = self.reasons["landlock"]
            return f"nothing here can confine it ({why}). Install bubblewrap, or use Linux 5.13 or newer with Landlock."
        deadline_s = asyncio.get_running_loop().time() + _TRIAL_S
        try:
            async with self.confine(request) as confined:
                ended = await run_process(
                    confined.program, deadline_s=deadline_s, keep_bytes=_TRIAL_BYTES, on_output=lambda *_: None
                )
        except ToolFailure as failure:
            return f"{failure.__cause__ or failure.error.message}"
        except OSError as failed:
            return f"{failed.strerror}."
        if ended.exit_code == 0:
            return ""
        lines = ended.stderr.text(_TRIAL_BYTES)[0].strip().splitlines()
        late = f"it was not over after {_TRIAL_S:g} s" if ended.timed_out else f"exit code {ended.exit_code}"
        return f"{late}{f', {lines[-1]}' if lines else ''}."

    @contextmanager
    def run_folder(self) -> Iterator[str]:
        """Yield a fresh folder for one run, outside of the hub's, which the program can write. Removed afterwards."""
        if not self._has_swept:
            self._has_swept = True
            _sweep(tempfile.gettempdir(), {self.user, os.geteuid()}, self._swept_after_s)
        folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX)
        held = os.open(folder, _OPEN_FOLDER)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.hand_over(folder)
            yield os.path.realpath(folder)
        finally:
            os.close(held)
            _remove(folder)

    def hand_over(self, path: str) -> None:
        """Give a folder or file, and everything within, to the program's user; never follows a link. Raises OSError."""
        if not self._drops:
            return
        os.lchown(path, self.user, self.user)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return
        for _, folders, files, at in os.fwalk(path):
            for name in (*folders, *files):
                os.chown(name, self.user, self.user, dir_fd=at, follow_symlinks=False)

    async def _best(self) -> Level | None:
        if not self._prlimit or not self._setpriv:
            self.reasons["bubblewrap"] = self.reasons["landlock"] = "prlimit and setpriv (util-linux) are not installed"
            return None
        if not self._bubblewrap:
            self.reasons["bubblewrap"] = "bubblewrap is not installed, or switched off"
        elif await self._bubblewrap_works():
            return "bubblewrap"
        else:
            self.reasons["bubblewrap"] = "bubblewrap cannot make namespaces here"
        if self._landlock and landlock_abi():
            return "landlock"
        self.reasons["landlock"] = "this kernel has no Landlock, or a filter forbids it"
        return None

    async def _bubblewrap_works(self) -> bool:
        methods: tuple[_Method, ...] = ("mounts by root", "user before") if self._drops else ("own user",)
        request = SandboxRequest((self._prlimit, "--version"), {}, "/")
        for method in methods:
            for namespaces in (NO_NAMESPACES_BELOW, ()) if method != "mounts by root" else ((),):
                self._method = method
                self._namespaces = namespaces
                # A level that cannot be started does not work here; the next one is tried.
                with readable(call_filter()) as calls, suppress(OSError):
                    if await succeeds(self._in_bubblewrap(request, calls)):
                        return True
        return False

    def _in_bubblewrap(self, request: SandboxRequest, calls: int) -> Program:
        is_root = self._method == "mounts by root"
        before = self._as_user() if self._method == "user before" else ()
        # In its own user namespace only its processes are counted, else all of its user.
        processes = request.bounds.processes + (tasks_now() if is_root else 0)
        mounts = self._mounts(request)
        network = ("--unshare-net",)
        argv = (
            *before,
            self._bubblewrap,
            *("--cap-drop", "ALL"),
            *(word for name in (_CAPABILITIES if is_root else ()) for word in ("--cap-add", f"CAP_{name.upper()}")),
            *(() if is_root else self._namespaces or ("--unshare-user-try",)),
            *_SEPARATE,
            *network,
            *(("--seccomp", str(calls)) if calls >= 0 else ()),
            *mounts,
            *("--remount-ro", "/", "--chdir", request.folder, "--"),
            *(self._as_user() if is_root else ()),
            *self._limits(request, processes),
            *request.argv,
        )
        passed = (*((calls,) if calls >= 0 else ()), *request.descriptors)
        return Program(argv, request.environment, "/", has_input=request.has_input, pass_fds=passed)

    def _mounts(self, request: SandboxRequest) -> Iterator[str]:
        """Yield the mounts: the system, then what the request names, parents before children."""
        room = ("--size", str(request.bounds.file_bytes), "--perms", "1777", "--tmpfs")
        yield from ("--ro-bind", "/usr", "/usr", *self._system)
        yield from (*PROCESSES, "--dev", "/dev", *room, "/dev/shm", "--remount-ro", "/dev", *room, "/tmp")  # noqa: S108 - the sandbox's own
        named = [("--ro-bind", path) for path in request.reads]
        binary = request.argv[0]
        folders = ("/usr", *SYSTEM_LINKS, *request.reads, *request.writes)
        named += [] if any(lies_in(binary, folder) for folder in folders) else [("--ro-bind", binary)]
        named += [("--bind", path) for path in request.writes]
        for how, path in sorted(named, key=lambda each: each[1].count("/")):
            # Otherwise bubblewrap makes the parent folders accessible to its user only.
            for above in reversed(Path(path).parents[:-1]):
                yield from ("--perms", "0755", "--dir", str(above))
            yield from (how, os.path.realpath(path), path)

    def _in_landlock(self, request: SandboxRequest, closed: Sequence[str]) -> Program:
        tied = self._as_user("--no-new-privs", "--pdeathsig", "KILL")
        argv = (*tied, *self._limits(request, tasks_now() + request.bounds.processes), *request.argv)
        paths = ("/usr", *SYSTEM_LINKS, *FROM_ETC, self._setpriv, self._prlimit, request.argv[0])
        named = [(os.path.realpath(path), READ_AND_RUN) for path in (*paths, *request.reads)]
        started = landlock_argv(
            argv,
            named=[*named, *((path, READ_AND_WRITE) for path in DEVICES)],
            writes=[os.path.realpath(path) for path in request.writes],
            calls=call_filter(alone=True, families=()),
            environment=request.environment,
            closed=closed,
            shown=_outermost(
                path for path in _resolve_paths(request) if any(lies_in(path, folder) for folder in closed)
            ),
        )
        return Program(
            started,
            request.environment,
            request.folder,
            has_input=request.has_input,
            pass_fds=tuple(request.descriptors),
        )

    def _as_user(self, *more: str) -> tuple[str, ...]:
        """Return setpriv and its flags, without any way back."""
        number = str(self.user)
        user = ("--reuid", number, "--regid", number, "--clear-groups", _INHERITS_NOTHING) if self._drops else ()
        return (self._setpriv, *user, *more, "--")

    def _limits(self, request: SandboxRequest, processes: int) -> tuple[str, ...]:
        """Return prlimit and its flags, soft and hard alike."""
        of = request.bounds
        return (
            *(self._prlimit, f"--cpu={of.cpu_s}", f"--as={of.memory_bytes}", f"--fsize={of.file_bytes}"),
            *(f"--nproc={processes}", f"--nofile={of.open_files}", "--core=0", "--"),
        )

    def _check_paths(self, request: SandboxRequest) -> None:
        """Check that no shown path contains, or lies in, a path of the hub or the kernel. Raises ToolFailure."""
        own = with_other_names(self._hidden)
        if any(lies_in(hidden, system) for hidden in own for system in ("/usr", *SYSTEM_LINKS)):
            raise _refusal("the hub's data folder or settings lie in a folder of the system, which every program sees")
        for path in map(os.path.realpath, _named_paths(request)):
            allowed = any(lies_in(path, shown) for shown in self._shown)
            for hidden in (*own, *_NEVER_SHOWN):
                if lies_in(hidden, path) or (lies_in(path, hidden) and not allowed):
                    raise _refusal(
                        "a path that it is to be shown contains, or lies in, the hub's own data folder or settings"
                    )

    async def _closed_to(self, request: SandboxRequest, level: Level) -> tuple[str, ...]:
        """Return the folders above the request's paths that the user cannot enter, and that root opens by mounts.

        Raises ToolFailure when the user cannot reach a path and root may make no mounts, or they would not help.
        """
        if not self._drops:
            return ()
        paths = _resolve_paths(request)
        if unreadable := [path for path in paths if not may(self.user, path, stat.S_IROTH)]:
            raise _unreachable(self.user, unreadable[0], "its own mode forbids it")
        closed = closed_folders(self.user, paths)
        if closed and (level != "landlock" or not await self._may_open(request, closed)):
            raise _unreachable(self.user, closed[0], "its mode forbids it, and the hub may make no mounts")
        return closed

    async def _may_open(self, request: SandboxRequest, closed: Sequence[str]) -> bool:
        async with self._trying:
            if self._opens_ways is None:
                probe = SandboxRequest((self._prlimit, "--version"), {}, "/", request.reads)
                self._opens_ways = await succeeds(self._in_landlock(probe, closed))
        return self._opens_ways


def _named_paths(request: SandboxRequest) -> tuple[str, ...]:
    return (*request.reads, *request.writes, request.argv[0])


def _resolve_paths(request: SandboxRequest) -> list[str]:
    """Return the paths of the request, its working folder among them, without links."""
    return [os.path.realpath(path) for path in (*_named_paths(request), request.folder)]


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return those that lie in no other."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(lies_in(path, other) for other in found):
            found.append(path)
    return tuple(found)


def _unreachable(user: int, path: str, why: str) -> ToolFailure:
    """Return the refusal; its cause, for operators alone, names the path."""
    failure = _refusal(f"user {user} cannot reach a path that it needs")
    failure.__cause__ = Unreachable(
        f"user {user} cannot reach {path}: {why}. Install bubblewrap, open the path by `chmod o+rx`, or run the hub "
        "as a user of its own."
    )
    return failure


def _refusal(why: str) -> ToolFailure:
    advice = "Operators see by `toolhub doctor` what this machine lacks. Use another tool."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, f"The program was not started: {why}. {advice}", retryable=False)


def _sweep(place: str, users: Container[int], older_than_s: float) -> None:
    """Remove the run folders of killed hubs: a live hub holds a lock on each of its own,

    which it takes a moment after making the folder.
    """
    for folder in Path(place).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # another hub has removed it, or it is no folder
            held = os.open(folder, _OPEN_FOLDER)
            try:
                status = os.fstat(held)
                if status.st_uid in users and time.time() - status.st_ctime >= older_than_s:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(str(folder))
            finally:
                os.close(held)


def _remove(folder: str) -> None:
    """Remove all of it, whatever modes the program has left."""
    for _, folders, _, at in os.fwalk(folder):
        for name in folders:
            # rmtree leaves closed folders behind without reporting them.
            with suppress(OSError):
                _open_up(name, at)
    shutil.rmtree(folder, ignore_errors=True)


def _open_up(name: str, at: int) -> None:
    """Open up a folder, never the target of a link with that name."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)  # noqa: PTH101 - what was opened
    finally:
        os.close(descriptor)
