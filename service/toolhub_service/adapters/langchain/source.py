"""A source of LangChain tools: read in a thread, because importing LangChain takes half a second and foreign code
longer.

For the adapter it also owns the worker processes of its tools, and what is known of each tool. The operator has named
the code and it lies in trusted namespaces, so its definitions are trusted without pins.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolhub_service.adapters.definitions import Overrides, SourceTerms, limit_problems
from toolhub_service.adapters.langchain.frames import encode
from toolhub_service.adapters.langchain.kind import LangChainSource, LoadTerms
from toolhub_service.adapters.langchain.no_tracing import disable_tracing, worker_environment
from toolhub_service.adapters.langchain.worker import worker_argv
from toolhub_service.adapters.langchain.worker_pool import WorkerPool
from toolhub_service.adapters.langchain.worker_process import WorkerProcess, WorkerTerms, start_worker
from toolhub_service.adapters.tool_names import remarks_of
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.source import Discovery, Trust
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redact
from toolhub_service.sandbox.hidden import HiddenPaths
from toolhub_service.sandbox.request import Level
from toolhub_service.schema.relaxing import repair_schema

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool
    from toolhub_service.adapters.langchain.loading import Read, Reader

Result = TypeVar("Result")

_LINES_KEPT: Final = 50
# In an answer of a worker, besides the value: runs, violations, a traceback.
_FRAME_ROOM_BYTES: Final = 1024 * 1024


class LangChainToolSource:
    """Implements `ToolSource`. One event loop owns it."""

    kind = ToolKind.LANGCHAIN
    trust = Trust.ALWAYS

    def __init__(
        self,
        name: str,
        entry: LangChainSource,
        trusted_namespaces: tuple[str, ...],
        *,
        redact: Redact,
        secrets: Collection[str] = (),
        met_problem: Callable[[str, BaseException], None] | None = None,
        max_result_bytes: int = 8 * 1024 * 1024,
        keep_warm: bool = True,
        hides: HiddenPaths | None = None,
    ) -> None:
        """`secrets`: values in `entry.args` that must not appear in a definition.

        `met_problem`: called with the source's name and each exception that prevented loading, on the loop.
        `max_result_bytes`: of a call's text or content, and of its artifact, each. `hides`: what workers must not see.
        `keep_warm`: start a worker as soon as there is a tool that needs one, because a start takes a second or more.
        """
        self.name = name
        self.entry = entry
        self.overrides = Overrides(entry.tools)
        self.max_result_bytes = max_result_bytes
        self._loads = LoadTerms(entry.load, entry.args, entry.entry_points, trusted_namespaces)
        self._terms = SourceTerms.of(self.kind, name, self._loads.endpoint, entry)
        self._mask = Mask(secrets)
        self._keep_warm = keep_warm
        self._hides = hides
        self._redact = redact
        self._troubled = met_problem
        self._reader: Reader | None = None
        self._reading: asyncio.Future[Read] | None = None
        self._tools: Mapping[str, BoundTool] = {}
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._remarks: tuple[str, ...] = ()  # on its definitions, when it was last read
        self.pool = WorkerPool(self._start_worker, size=entry.processes)

    @property
    def endpoint(self) -> str:
        return self._redact(self._terms.endpoint)

    async def discover(self) -> Discovery:
        if self.pool.is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"The source {self.name} has been closed.", retryable=False)
        if self._reading is None:
            self._reading = _in_thread(self._read_tools)
            self._reading.add_done_callback(self._on_read)
        try:
            # Shielded: a thread cannot be stopped, and the next reader waits for the same one.
            read = await asyncio.shield(self._reading)
        except ImportError as missing:
            message = "LangChain is not installed here: toolhub extras install langchain."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False) from missing
        except ToolFailure:
            raise
        except Exception as error:
            message = f"The source {self.name} could not be read: {type(error).__name__}."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message) from error
        return self._discovery(read)

    def listen(self, changed: Callable[[], None]) -> None:
        """Do nothing: loaded code does not change."""

    def diagnostics(self) -> Sequence[str]:
        return tuple(map(self._redact, (*(f"stderr: {line}" for line in self._lines), *self._remarks)))

    async def start(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        await self.pool.close()

    def tool(self, own_name: str) -> BoundTool | None:
        """Return the tool loaded under its own name; None: there is none."""
        return self._tools.get(own_name)

    def runs_in_hub(self, tool: BoundTool) -> bool:
        """Return whether it is called on the hub's event loop; otherwise in a worker, from which the hub's data is
        hidden."""
        return tool.on_loop and self.entry.in_hub

    async def level_of(self, tool: BoundTool) -> Level | None:
        """Return what keeps the tool from the hub's own files; `rlimits` where the operator wants no protection."""
        return "rlimits" if self._hides is None or self.runs_in_hub(tool) else await self._hides.level()

    def _read_tools(self) -> Read:
        disable_tracing()
        from toolhub_service.adapters.langchain.loading import Reader

        if self._reader is None:
            self._reader = Reader(
                self._terms, self._loads, self.entry.inject, self.overrides, repair_schema, self._mask
            )
        return self._reader.read()

    def _on_read(self, reading: asyncio.Future[Read]) -> None:
        self._reading = None
        if reading.cancelled() or reading.exception() is not None:
            return
        read = reading.result()
        self._tools = read.tools
        # A worker takes seconds to import what it needs, so it starts before the first call.
        if self._keep_warm and any(not self.runs_in_hub(tool) and not tool.problem for tool in read.tools.values()):
            self.pool.warm()
        if self._troubled is not None:
            for problem in read.unloaded:
                if problem.cause is not None:
                    self._troubled(self.name, problem.cause)

    def _discovery(self, read: Read) -> Discovery:
        from toolhub_service.adapters.langchain.loading import SERVER

        problems = (*(problem.sentence for problem in read.unloaded), *read.left_out)
        if problems and not read.tools:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"Nothing could be loaded. {'; '.join(problems)[:500]}")
        self._remarks = limit_problems(list(remarks_of(read.definitions)))
        return Discovery(definitions=read.definitions, problems=problems, server=SERVER)

    async def _start_worker(self) -> WorkerProcess:
        greeting = encode({"loads": asdict(self._loads), "max_bytes": self.max_result_bytes})
        terms = WorkerTerms(
            argv=worker_argv(),
            environment=worker_environment(os.environ),
            greeting=greeting,
            max_frame_bytes=2 * self.max_result_bytes + _FRAME_ROOM_BYTES,
            hides=self._hides,
        )
        return await start_worker(terms, self._lines.append)


def _in_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Return the result of the work in a daemon thread: an import that never ends must not delay the end of the hub."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(set_it: Callable[[Any], None], what: Any) -> None:
        if not future.done():
            set_it(what)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, work())
        except Exception as error:  # noqa: BLE001  goes to whoever waits
            outcome = (future.set_exception, error)
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(deliver, *outcome)

    # Not a pool's thread: an import that hangs would occupy it for ever, and keep the hub from ending.
    threading.Thread(target=run, name="langchain-reading", daemon=True).start()
    return future
