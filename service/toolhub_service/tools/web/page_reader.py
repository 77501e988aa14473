"""The processes that parse pages: few, started at the first page, ended when idle, killed when late.

A page is untrusted, and its parsers are written in C and take quadratic time. So no page is parsed in the hub: a
process without network, which may read only the libraries (where the kernel has Landlock), gets the bytes and answers
with one line of JSON. It is ended after a number of pages, so that remains of one page cannot affect later ones for
long.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.sandbox.call_filter import call_filter
from toolhub_service.sandbox.child import Child, Program, spawn
from toolhub_service.sandbox.kernel_walls import (
    READ_AND_RUN,
    READ_AND_WRITE,
    READ_FOLDERS,
    filter_calls,
    forbid_new_privileges,
    landlock_abi,
    restrict_files,
)

WORKER: Final = "toolhub_service.tools.web.page_worker"
_PACKAGE: Final = Path(__file__).parents[2]
# lxml and related libraries keep memory after each page; a new process frees it.
PAGES_A_WORKER: Final = 100
IDLE_S: Final = 60.0
# Per page: the engines' shares of processor time, and as much again where the machine is busy.
PAGE_S: Final = 40.0
_ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
_READABLE: Final = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", sys.prefix, sys.base_prefix)
_ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


class RawPage(msgspec.Struct, frozen=True):
    """The body of a page and how to parse it."""

    url: str
    data: bytes
    charset: str
    """Charset of the Content-Type; empty when it names none."""
    is_html: bool
    is_cut: bool
    """Whether the body was truncated."""
    markdown: bool
    links: bool
    max_chars: int


class PageLink(msgspec.Struct, frozen=True):
    """One link of a page."""

    url: str
    text: str


class PageReading(msgspec.Struct, frozen=True):
    """The text of a page."""

    title: str
    text: str
    is_cut: bool
    """Whether there was more text than requested."""
    links: list[PageLink]
    charset: str
    engine: str
    refresh: str = ""
    """Where the page sends its reader by itself; empty: nowhere."""


class PageReader:
    """Reads pages. One event loop owns it. `close` it after the last call."""

    def __init__(self, *, size: int = 2, page_s: float = PAGE_S) -> None:
        """`size`: concurrent processes. `page_s`: longest time for a page."""
        self._permits = asyncio.Semaphore(size)
        self._page_s = page_s
        self._idle: list[_Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._closes: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of the processes that wait for a page."""
        return tuple(worker.pid for worker in self._idle)

    async def read(self, page: RawPage, *, deadline_s: float) -> PageReading:
        """Read the page by `deadline_s` (loop clock). Raises ToolFailure EXECUTION_ERROR for a page that cannot be
        parsed."""
        async with self._permits:
            ends_s = min(deadline_s, asyncio.get_running_loop().time() + self._page_s)
            try:
                return await self._read_page(page, ends_s)
            except _WorkerEnded as ended:
                # A new process that died from a page would die from it again.
                if not ended.was_used:
                    raise _unreadable() from None
            # It may have been dead, or dying from an earlier page, before it got this one.
            try:
                return await self._read_page(page, ends_s)
            except _WorkerEnded:
                raise _unreadable() from None

    async def _read_page(self, page: RawPage, ends_s: float) -> PageReading:
        worker = await self._take()
        was_used = worker.pages > 0
        try:
            async with asyncio.timeout_at(ends_s):
                reading = await worker.read(page)
        except TimeoutError:
            self._end(worker)
            raise _unreadable() from None
        except _WorkerEnded:
            self._end(worker)
            # The cause of its end (low memory, an update on disk) may have affected the waiting processes as well.
            self._end_idle()
            raise _WorkerEnded(was_used=was_used) from None
        # Also when cancelled: half an answer in the pipe would be read as the next page's.
        except BaseException:
            self._end(worker)
            raise
        self._put_back(worker)
        return reading

    async def close(self) -> None:
        """End the waiting processes, and wait for those that are ending."""
        self._end_idle()
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            self._end(worker)
        worker = _Worker()
        try:
            await worker.start()
        except OSError as error:
            message = "The process that reads pages could not be started. Try again later, or use core/http.fetchText."
            raise refuse(ErrorKind.EXECUTION_ERROR, message, retryable=True) from error
        return worker

    def _put_back(self, worker: _Worker) -> None:
        if worker.pages >= PAGES_A_WORKER:
            self._end(worker)
            return
        self._idle.append(worker)
        # The idle time restarts with each page.
        if self._closes is not None:
            self._closes.cancel()
        self._closes = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        if self._closes is not None:
            self._closes.cancel()
            self._closes = None
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, worker: _Worker) -> None:
        task = asyncio.ensure_future(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _WorkerEnded(Exception):
    """The process ended, or sent an invalid answer."""

    def __init__(self, *, was_used: bool = False) -> None:
        """`was_used`: whether it had read a page before."""
        super().__init__()
        self.was_used = was_used


class _Worker(asyncio.SubprocessProtocol):
    """One process, which reads one page at a time."""

    def __init__(self) -> None:
        self.pages = 0
        self._child: Child | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._received = bytearray()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.get_pid()

    @property
    def is_alive(self) -> bool:
        return self._child is not None and not self._child.exited.is_set()

    async def start(self) -> None:
        """Start the process. Raises OSError."""
        program = Program(
            (sys.executable, "-I", "-m", WORKER), _ENVIRONMENT, "/", has_input=True, confine=confine_parser
        )
        self._child = await spawn(program, self)

    async def read(self, page: RawPage) -> PageReading:
        """Return the reading of a page. Raises _WorkerEnded."""
        assert self._child is not None
        to_worker = self._child.get_pipe_transport(0)
        if not isinstance(to_worker, asyncio.WriteTransport) or not self.is_alive:
            raise _WorkerEnded
        self.pages += 1
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        to_worker.writelines((msgspec.json.encode(_question(page)), b"\n", page.data))
        line = await self._answer
        try:
            return msgspec.json.decode(line, type=PageReading)
        except msgspec.MsgspecError:
            raise _WorkerEnded from None

    async def end(self) -> None:
        if self._child is not None:
            await self._child.end(0.0)

    # asyncio.SubprocessProtocol

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:  # complaints of libraries are of no use
            return
        self._received += data
        if self._received.endswith(b"\n"):
            self._settle(bytes(self._received))
        # A page's text is limited by maxChars; more than this means a broken worker, and the hub keeps none of it.
        elif len(self._received) > _ANSWER_MAX_BYTES:
            self._settle(None)

    def process_exited(self) -> None:
        self._settle(None)

    def _settle(self, line: bytes | None) -> None:
        if self._answer is None or self._answer.done():
            return
        if line is None:
            self._answer.set_exception(_WorkerEnded())
        else:
            self._answer.set_result(line)


def _question(page: RawPage) -> Mapping[str, object]:
    return {
        "bytes": len(page.data),
        "url": page.url,
        "charset": page.charset,
        "html": page.is_html,
        "is_cut": page.is_cut,
        "markdown": page.markdown,
        "links": page.links,
        "max_chars": page.max_chars,
    }


def confine_parser() -> None:
    """Confine the process's thread: it may open libraries only, and reach no network."""
    with suppress(OSError):  # a kernel without both still enforces the limits that the process sets itself
        if landlock_abi():
            allowed = [(path, READ_AND_RUN) for path in (*_READABLE, str(_PACKAGE))]
            devices = [("/dev/null", READ_AND_WRITE), ("/dev/urandom", READ_AND_RUN)]
            restrict_files([*allowed, *devices, (str(_PACKAGE.parent), READ_FOLDERS)], ())
        else:
            forbid_new_privileges()
        filter_calls(call_filter(families=()))


def _unreadable() -> ToolFailure:
    return refuse(
        ErrorKind.EXECUTION_ERROR,
        "The page could not be turned into text in time: it is too large or made to be hard to read. Use "
        "core/http.fetchText for its source, or another page.",
    )
