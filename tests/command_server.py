"""Runs `toolhub` in processes that need not import it anew: forked from a program that has imported all of it.

The tests start some three hundred commands and hubs, and most of the time of each are imports. What runs is a process
like any other, with standard streams, environment, folder and exit code of its own. The tests of terminals, and of what
a start itself is about, start `toolhub` as a person does.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

BIN = Path(sys.executable).parent
_REQUEST_BYTES_MAX = 100_000
_FORKED = Path(__file__).parent / "e2e/forked"


def run(
    words: Sequence[str], *, stdin: str, env: Mapping[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """`toolhub WORDS` to its end, in pipes; a return code below zero is a signal. Raises TimeoutError."""
    given, typed = os.pipe()
    status, out, err = _forked(words, given, env, cwd, path=())
    with (
        status,
        status.makefile() as reports,
        os.fdopen(out) as printed,
        os.fdopen(err) as warned,
        ThreadPoolExecutor(3) as streams,
    ):
        texts = [streams.submit(stream.read) for stream in (printed, warned)]
        streams.submit(_write, typed, stdin.encode())
        pid = int(reports.readline())
        status.settimeout(timeout_s)
        try:
            code = int(reports.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(list(words), code, *(text.result() for text in texts))


def on_path(env: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The environment with a `toolhub` that is forked in the place of the installed one, and a descriptor that the
    processes which run it must inherit. It is no part of its terminal's session: Ctrl-C does not reach it."""
    descriptor = _server().fileno()
    path = f"{_FORKED}{os.pathsep}{env.get('PATH', '')}"
    return {**env, "PATH": path, "COMMAND_SERVER": str(descriptor)}, descriptor


@dataclass(slots=True)
class Forked:
    """`toolhub WORDS` while it runs."""

    pid: int
    stdout: TextIO
    stderr: Callable[[], str]
    """All that it wrote there, once it has ended."""
    _status: socket.socket
    _lines: TextIO

    def wait(self, timeout_s: float) -> int:
        """Its return code. Raises TimeoutError."""
        self._status.settimeout(timeout_s)
        return int(self._lines.readline())


@contextmanager
def forked(words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Iterator[Forked]:
    """Killed where it runs when the block is left."""
    status, out, err = _forked(words, os.open(os.devnull, os.O_RDONLY), env, cwd, path=())
    with (
        status,
        status.makefile() as lines,
        ThreadPoolExecutor(1) as reader,
        os.fdopen(err) as errors,
        os.fdopen(out) as stdout,
    ):
        text = reader.submit(errors.read)
        pid = int(lines.readline())
        with _killed_at_the_end(pid):
            yield Forked(pid, stdout, text.result, status, lines)


@contextmanager
def _killed_at_the_end(pid: int) -> Iterator[None]:
    try:
        process = os.pidfd_open(pid)  # a number may be another's by then
    except ProcessLookupError:
        yield
        return
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


def _write(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(pipe, "wb") as stream:  # a command need not read all of it
        stream.write(data)


class ForkedProcess:
    """`python -m toolhub_service WORDS` while it runs, with what `asyncio.subprocess.Process` has."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._open: list[asyncio.StreamWriter | asyncio.BaseTransport] = []
        self._end: asyncio.Task[int]

    @classmethod
    async def start(cls, words: Sequence[str], env: Mapping[str, str]) -> ForkedProcess:
        here = Path.cwd()
        status, out, err = _forked(words, os.open(os.devnull, os.O_RDONLY), env, here, path=(str(here),))
        reports, writer = await asyncio.open_connection(sock=status)
        pid = int(await reports.readline())
        (stdout, out_pipe), (stderr, warned) = await _reader(out), await _reader(err)
        forked = cls(pid, stdout, stderr)
        forked._open = [writer, out_pipe, warned]
        forked._end = asyncio.create_task(forked._ended(reports))
        return forked

    async def _ended(self, reports: asyncio.StreamReader) -> int:
        self.returncode = int(await reports.readline())
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    async def communicate(self) -> tuple[bytes, bytes]:
        """The rest of what it writes, to its end."""
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        self.close()
        return out, err

    def close(self) -> None:
        """Once it has ended: read no more, also where a process that it started holds its pipes."""
        for each in self._open:
            each.close()


async def _reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    reader = asyncio.StreamReader(limit=2**20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    return reader, transport


def _forked(
    words: Sequence[str], stdin: int, env: Mapping[str, str], cwd: Path, *, path: Sequence[str]
) -> tuple[socket.socket, int, int]:
    """What prints its process id and then its exit code, a line each, and the pipes of what it writes."""
    ours, theirs = socket.socketpair()
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    asked = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd), "path": path}).encode()
    socket.send_fds(_server(), [asked], [theirs.fileno(), stdin, to_out, to_err])
    theirs.close()
    for descriptor in (stdin, to_out, to_err):
        os.close(descriptor)
    return ours, out, err


_STARTING = threading.Lock()


def _server() -> socket.socket:
    """One for each process of tests. It ends when its socket is closed, with us at the latest."""
    with _STARTING:  # of two threads that ask at once, `functools.cache` would let each start one
        return _started_server()


@functools.cache
def _started_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(theirs.fileno(), True)
    program = [sys.executable, "-P", __file__, str(theirs.fileno())]
    os.posix_spawn(sys.executable, program, {**os.environ, "GRPC_VERBOSITY": "NONE"})
    theirs.close()
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the other side is gone."""
    _import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        asked, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 4)
        if not asked:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(asked), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: Mapping[str, Any], status: int, *streams: int) -> None:
    """Fork the command, and report its process id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        os.close(status)
        _become(request, streams)
    for descriptor in streams:
        os.close(descriptor)
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """This process is the command from here on."""
    from toolhub_service.cli.root import main

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [*request["path"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin = io.TextIOWrapper(open(0, "rb"))  # noqa: SIM115 - they are open until the end
    sys.stdout = io.TextIOWrapper(open(1, "wb"))  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb"), errors="backslashreplace", line_buffering=True)  # noqa: SIM115
    sys.argv = [str(BIN / "toolhub"), *request["words"]]
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    else:
        code = 0
    if isinstance(code, str):
        sys.stderr.write(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))  # all that was imported need not be taken down


def _import_all() -> None:
    from toolhub_service.cli.root import _COMMANDS

    for target, _ in _COMMANDS.values():
        importlib.import_module(target.partition(":")[0])
    for name in ("app.offline", "app.doctor", "app.serving", "cli.connection.client", "cli.connection.channel"):
        importlib.import_module(f"toolhub_service.{name}")
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"  # noqa: PTH208


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
