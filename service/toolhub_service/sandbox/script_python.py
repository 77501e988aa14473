"""The Python for scripts of skills: the hub's own or another, what it needs to read, and whether it starts confined."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.process import run_process
from toolhub_service.sandbox.request import SandboxRequest, interpreter_reads

_ASKED: Final = (
    "import json, platform, sys; "
    "print(json.dumps([platform.python_version(), sys.prefix, sys.base_prefix, sys.executable]))"
)
_ASK_TIMEOUT_S: Final = 30.0
_ANSWER_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    version: str
    """Such as `CPython 3.12.4`."""
    reads: tuple[str, ...]
    """Folders that it needs to read."""


class ScriptPython:
    """The interpreter that the operator chose. It is asked once for what it is, and tried until it starts."""

    def __init__(self, ladder: Ladder, path: str = "", *, on_problem: Callable[[str], None] = lambda _: None) -> None:
        """`path`: of the interpreter; empty: the hub's own. `on_problem`: called with each new reason of `problem`."""
        self._ladder = ladder
        self._path = path
        self._on_problem = on_problem
        self._reason = ""
        self._asking: asyncio.Task[Interpreter] | None = None
        self._starts = False

    async def find(self) -> Interpreter:
        """Return the interpreter. Raises ToolFailure TOOL_UNAVAILABLE when it does not run."""
        if self._asking is None or (self._asking.done() and self._asking.exception() is not None):
            self._asking = asyncio.create_task(found_interpreter(self._path), name="skills:python")
        return await asyncio.shield(self._asking)

    async def problem(self, *, again: bool = False) -> str:
        """Return why it cannot run scripts in the sandbox, with what to do, for operators; empty: it can.

        `again`: try it even if it has started before.
        """
        if self._starts and not again:
            return ""
        reason = await self._find_start_problem()
        self._starts = not reason
        if reason and reason != self._reason:
            self._on_problem(reason)
        self._reason = reason
        return reason

    async def _find_start_problem(self) -> str:
        try:
            python = await self.find()
        except ToolFailure:
            return f"{self._path} does not run. Set `skills.python` to a Python, or leave it empty for the hub's own."
        request = SandboxRequest((python.path, "-I", "-c", "import json"), {}, "/", reads=python.reads)
        why = await self._ladder.why_not_started(request)
        return f"{python.path} does not start in the sandbox: {why}" if why else ""


def own_interpreter() -> Interpreter:
    """Return the hub's own interpreter."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return Interpreter(sys.executable, version, interpreter_reads())


async def found_interpreter(path: str) -> Interpreter:
    """Return the interpreter at the path; empty: the hub's own. Raises ToolFailure TOOL_UNAVAILABLE when it does not
    run."""
    if not path:
        return own_interpreter()
    program = Program((path, "-I", "-c", _ASKED), {"LANG": "C.UTF-8"}, "/")
    deadline_s = asyncio.get_running_loop().time() + _ASK_TIMEOUT_S
    try:
        ended = await run_process(program, deadline_s=deadline_s, keep_bytes=_ANSWER_BYTES, on_output=_ignore_output)
        version, prefix, base, executable = map(str, json.loads(bytes(ended.stdout.kept)))
    except (OSError, ValueError):
        message = "The interpreter of this source's skills does not run. An operator must correct `skills.python`."
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False) from None
    return Interpreter(executable, f"CPython {version}", _reads(prefix, base, str(Path(executable).parent)))


def _reads(*places: str) -> tuple[str, ...]:
    resolved = dict.fromkeys(os.path.realpath(place) for place in places)
    return tuple(place for place in resolved if place != "/usr" and not place.startswith("/usr/"))


def _ignore_output(lines: bytes, stream: str) -> None: ...
