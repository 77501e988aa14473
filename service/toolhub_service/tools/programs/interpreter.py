"""The interpreter of programs: pydantic-monty, which only this file knows. Its interface changes often, so the version
is pinned, and all other files deal with programs, calls and values.

A program runs in a worker process out of a bounded pool, which has no file, no socket, no environment and no clock of
the machine: time stands still at `now_unix_ms`, random numbers come from `seed`, sleeping returns at once. So the same
program with the same answers to its calls does the same, on which resuming by replay depends.

    the text ──► checked against the stubs ──► run ──► a call of the program ──► `Host.call` on the event loop
                                                ▲                                        │
                                                └──── answers, in the order of the calls ◄┘

Answers are returned one by one in the order of the calls, however fast each was, so that the program's behaviour does
not depend on the machine.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import distribution
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.sandbox.confined_start import write_start
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.request import Bounds, Level, SandboxRequest
from toolhub_service.tools.programs.bounds import Printed, ProgramLimits, failure_of_exception, no_syntax, type_failure

if TYPE_CHECKING:
    import pydantic_monty

VERSION: Final = "pydantic-monty 1.4.0"
INSTALL: Final = "toolhub extras install programs"
BUILT_IN_CALL: Final = "call"
ERROR_OF: Final = "error_of"

_MAX_DEPTH: Final = 100
"""Recursion limit of the program's own functions."""
_CHECKED_KEPT: Final = 1_000
_GRACE_S: Final = 1.0
_RUNS_PER_WORKER: Final = 200
DEPTHS: Final = 6
"""More than calls can be nested."""
_LAST_PAUSE_S: Final = 0.2
_WORKER_CPU_S: Final = 100_000
_WORKER_MEMORY_BYTES: Final = 2 * 1024**3
"""Address space: the type checker reserves far more than it uses."""
_WORKER_FILE_BYTES: Final = 1024 * 1024
_WORKER_THREADS: Final = 32


class Program(msgspec.Struct, frozen=True):
    code: str
    inputs: Mapping[str, Any]
    modules: Mapping[str, Sequence[str]]
    """Names of each module's functions."""
    stubs: Mapping[str, str]
    """By module: arguments and results of its functions."""
    built_in: str
    """Stubs of functions available without an import."""
    now_unix_ms: int
    seed: str
    is_checked: bool = True
    """Whether its types are checked before it runs."""
    near: Callable[[str], str] = lambda _: ""
    """Returns the function most similar to an unknown `module.function`; empty: none."""


class Host(Protocol):
    """The functions that a program can call. Used on the event loop."""

    def stop_reason(self) -> BaseException | None:
        """Return why the program must stop; None: it continues."""

    async def call(self, module: str, function: str, args: tuple[Any, ...], members: Mapping[str, Any]) -> Any:
        """Return a function's answer; `module` is empty for the built-in ones. The program may catch its exceptions."""

    def error_of(self, text: str) -> Mapping[str, Any]:
        """Return the details of the failure that was raised with this text."""


@dataclass(slots=True)
class Ended:
    value: Any
    """Untrusted: of any type, possibly a thousand levels deep."""


class Interpreter:
    """A pool of workers, started when the first program runs. `close` ends them."""

    def __init__(self, limits: ProgramLimits, ladder: Ladder) -> None:
        self.limits = limits
        self.sandbox: Level | None = None
        """How the workers are confined; None before the first has started."""
        self._ladder = ladder
        self._stack = AsyncExitStack()
        self._pool: pydantic_monty.AsyncMonty | None = None
        self._opening = asyncio.Lock()
        # Each depth has its own places: a program that waits for an inner one must not hold the place that it needs.
        self._free = [asyncio.Semaphore(limits.workers) for _ in range(DEPTHS)]
        self._checked: OrderedDict[bytes, None] = OrderedDict()

    @staticmethod
    def unavailable_reason() -> str:
        return "" if find_spec("pydantic_monty") else f"programs need an interpreter: {INSTALL}"

    async def level(self) -> Level | None:
        """Return how workers are confined here; None: they cannot be, and do not start."""
        return await self._ladder.level()

    async def close(self) -> None:
        async with self._opening:
            self._pool = None
            await self._stack.aclose()

    async def run(self, program: Program, host: Host, printed: Printed, deadline_s: float, depth: int = 0) -> Ended:
        """Return the value of the last expression. `deadline_s` is on the loop clock; `depth`: calls above this one.

        Raises ToolFailure INVALID_INPUT (syntax, types), EXECUTION_ERROR (an exception, memory, a crash of the worker),
        TIMEOUT (processor time, wall time), RATE_LIMITED (no worker is free in time), TOOL_UNAVAILABLE (the
        interpreter does not start here, whatever the program), and the exception of `host.stop_reason`.
        """
        loop = asyncio.get_running_loop()
        wall_s = min(self.limits.wall_s, deadline_s - loop.time())
        free = self._free[min(depth, DEPTHS - 1)]
        try:
            async with asyncio.timeout(wall_s):
                async with free:
                    return await self._run(program, host, printed)
        except TimeoutError as late:
            message = f"The program was not over after {wall_s:.0f} s, its calls included, and was ended."
            raise refuse(ErrorKind.TIMEOUT, message, max_runtime_s=round(wall_s, 3), stopped=True) from late

    async def _run(self, program: Program, host: Host, printed: Printed) -> Ended:
        import pydantic_monty as monty

        pool = self._pool or await self._open()
        key = _key_of_checked(program)
        is_checked = program.is_checked and key not in self._checked
        try:
            async with pool.checkout(**self._terms(program, host, is_checked=is_checked)) as session:
                for module in _modules_without_import(program):
                    await session.feed_run(f"import {module}", print_callback=printed)
                start = session.feed_start(
                    program.code,
                    inputs={"inputs": dict(program.inputs)},
                    external_lookup=_built_in(host),
                    print_callback=printed,
                )
                snapshot = await start
                self._note_checked(key)
                return Ended(await _drive(snapshot, host, _call_names(program)))
        except monty.MontyTypingError as wrong:
            raise type_failure(wrong.display(), program.near) from wrong
        except monty.MontySyntaxError as wrong:
            frame = next(iter(wrong.traceback()), None)
            line, column = (frame.line, frame.column) if frame else (0, 0)
            raise no_syntax(wrong.display("msg"), line, column) from wrong
        except monty.MontyRuntimeError as failed:
            trace = failed.traceback()
            line = trace[min(len(trace), _MAX_DEPTH) - 1].line if trace else 0
            name = type(failed.exception()).__name__
            text = failed.display("msg")
            raise host.stop_reason() or failure_of_exception(
                name, text, line, program.code, printed, self.limits
            ) from failed
        except monty.MontyCrashedError as crashed:
            if not await _starts(pool):
                raise _not_started() from crashed
            message = "The program ended its interpreter, which is replaced. Do less at once, or in another way."
            raise refuse(ErrorKind.EXECUTION_ERROR, message, exception="crash", stdout=printed.text) from crashed
        except monty.MontyConversionError as odd:
            message = f"A value cannot be handed to the program: {odd}"
            raise refuse(ErrorKind.INVALID_INPUT, message, field="inputs") from odd

    def _terms(self, program: Program, host: Host, *, is_checked: bool) -> dict[str, Any]:
        import pydantic_monty as monty

        limits = self.limits
        modules = {
            module: monty.ExternalModule(
                {name: _function(host, module, name) for name in functions}, stubs=program.stubs.get(module)
            )
            for module, functions in program.modules.items()
        }
        return {
            "script_name": "program.py",
            "limits": {
                "max_memory": limits.memory_bytes,
                "max_feed_duration_secs": limits.cpu_s,
                "max_recursion_depth": _MAX_DEPTH,
                # Well above what the calls need: exceeding `calls_max` is an error that the program can catch.
                "max_suspensions": 4 * limits.calls_max + 200,
            },
            "external_modules": modules,
            "os_policy": {
                # A replay must make the same calls: time stands still, sleep returns at once, and random numbers have a
                # seed.
                "datetime": datetime.fromtimestamp(program.now_unix_ms / 1_000, UTC),
                "sleep": "zero",
                "process_time": "zero",
                "random_start": {"seed": program.seed},
            },
            "type_check": is_checked,
            "type_check_stubs": program.built_in if is_checked else None,
            "type_check_format": "json" if is_checked else None,
        }

    async def _open(self) -> pydantic_monty.AsyncMonty:
        import pydantic_monty as monty

        async with self._opening:
            if self._pool is None:
                folder = self._stack.enter_context(TemporaryDirectory(prefix="toolhub-programs-"))
                start, self.sandbox = await write_start(folder, self._ladder, self._worker(), "landlock")
                pool = monty.AsyncMonty(
                    binary_path=start,
                    min_processes=1,
                    # Each depth has as many places as the first, see `_free`.
                    max_processes=self.limits.workers * DEPTHS,
                    max_checkouts_per_worker=_RUNS_PER_WORKER,
                    feed_duration_limit_grace=_GRACE_S,
                )
                try:
                    self._pool = await self._stack.enter_async_context(pool)
                except (RuntimeError, monty.MontyCrashedError) as failed:
                    raise _not_started() from failed
                # Its threads use Python objects for a moment after the pool is closed, and a process that ends
                # meanwhile aborts.
                atexit.register(time.sleep, _LAST_PAUSE_S)
            return self._pool

    def _worker(self) -> SandboxRequest:
        """Return the request for the interpreter's binary, which needs no other file. A worker serves many programs and
        enforces their limits of time and memory; these are above them."""
        bounds = Bounds(
            cpu_s=_WORKER_CPU_S,
            memory_bytes=self.limits.memory_bytes + _WORKER_MEMORY_BYTES,
            file_bytes=_WORKER_FILE_BYTES,
            processes=_WORKER_THREADS,
            # Limits of a worker for many programs: the interpreter counts the use of each.
            open_files=64,
        )
        return SandboxRequest((_binary(),), {}, "/", bounds=bounds, has_input=True)

    def _note_checked(self, key: bytes) -> None:
        self._checked[key] = None
        if len(self._checked) > _CHECKED_KEPT:
            self._checked.popitem(last=False)


async def _starts(pool: pydantic_monty.AsyncMonty) -> bool:
    """Return whether a worker starts and runs the simplest program: then another has ended it itself."""
    import pydantic_monty as monty

    try:
        async with pool.checkout() as session:
            await session.feed_run("1")
    except (RuntimeError, monty.MontyCrashedError):
        return False
    return True


def _not_started() -> ToolFailure:
    message = (
        "The interpreter of programs does not start on the hub's machine, so no program runs: call the tools one by "
        "one. Operators see by `toolhub doctor` what the machine lacks."
    )
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)


class UnknownAnswer:
    """Placeholder in a dry run for an unknown answer."""


def unknown_answer() -> Any:
    """Return a placeholder for `Host.call`: a value that can be passed on and stored, and reveals nothing."""
    import pydantic_monty as monty

    return monty.ClassInstance(UnknownAnswer())


def _binary() -> str:
    """Return the path of the distribution's interpreter."""
    files = distribution("pydantic-monty-runtime").files or ()
    return os.path.realpath(next(file.locate() for file in files if file.name == "monty"))


def _built_in(host: Host) -> dict[str, Callable[..., Any]]:
    def error_of(error: BaseException, /) -> Mapping[str, Any]:
        return host.error_of(str(error))

    return {BUILT_IN_CALL: _function(host, "", BUILT_IN_CALL), ERROR_OF: error_of}


def _function(host: Host, module: str, name: str) -> Callable[..., Awaitable[Any]]:
    async def function(*args: Any, **members: Any) -> Any:
        return await host.call(module, name, args, members)

    return function


async def _drive(snapshot: Any, host: Host, known: frozenset[str]) -> Any:
    """Drive the program from one halt to the next, and return its value."""
    import pydantic_monty as monty

    under_way: dict[int, asyncio.Task[Any]] = {}
    try:
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.AsyncFutureSnapshot):
                snapshot = await _answer_oldest(snapshot, under_way)
            elif _is_call_beside_others(snapshot, known):
                # `asyncio.gather` in the program: its calls run concurrently.
                under_way[snapshot.call_id] = asyncio.create_task(_begin_call(snapshot, host))
                snapshot = await snapshot.resume({"future": ...})
            else:
                snapshot = await snapshot.resume_auto()
            if (reason := host.stop_reason()) is not None:
                raise reason
        return snapshot.output
    finally:
        if host.stop_reason() is None:  # otherwise running calls may finish, so that their answers are kept
            for task in under_way.values():
                task.cancel()
        await asyncio.gather(*under_way.values(), return_exceptions=True)


def _call_names(program: Program) -> frozenset[str]:
    """Return the names of the functions that are calls; the interpreter itself reports any other name as unknown."""
    functions = (f"{module}.{function}" for module, names in program.modules.items() for function in names)
    return frozenset((BUILT_IN_CALL, *functions))


def _is_call_beside_others(snapshot: Any, known: frozenset[str]) -> bool:
    """Return whether the program continues during the call; otherwise it waits for it at once."""
    import pydantic_monty as monty

    if not isinstance(snapshot, monty.AsyncFunctionSnapshot) or snapshot.is_os_function:
        return False
    return snapshot.function_name in known and not snapshot.allow_eager_await


async def _begin_call(snapshot: Any, host: Host) -> Any:
    module, _, function = snapshot.function_name.rpartition(".")
    return await host.call(module, function, snapshot.args, snapshot.kwargs)


async def _answer_oldest(snapshot: Any, under_way: dict[int, asyncio.Task[Any]]) -> Any:
    """Return the next halt, after the answer to the oldest call that the program may wait for."""
    # The oldest, not the first to end: a replay answers in the same order, whatever the durations.
    oldest = min(snapshot.pending_call_ids)
    task = under_way.pop(oldest)
    try:
        settled: dict[str, Any] = {"return_value": await task}
    except (RuntimeError, ToolFailure) as failed:  # for the program to catch
        settled = {"exception": failed}
    return await snapshot.resume({oldest: settled})


def _modules_without_import(program: Program) -> list[str]:
    """Return the modules of tools that the program uses without importing them; they are available all the same."""
    lines = [line.strip() for line in program.code.split("\n")]
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    words = {word for line in imports for word in line.replace(",", " ").split()}
    return [module for module in program.modules if module not in words]


def _key_of_checked(program: Program) -> bytes:
    # Includes the stubs: the same code may be invalid once a tool has another schema.
    digest = sha256(program.code.encode("utf-8", "surrogatepass"))
    for module, stubs in sorted(program.stubs.items()):
        digest.update(f"\0{module}\0{stubs}".encode("utf-8", "replace"))
    return digest.digest()
