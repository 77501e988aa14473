"""The Python for scripts of skills: the hub's own or another, detected once, and the files that it needs."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.sandbox.process import Program, run_process
from toolhub_service.sandbox.request import interpreter_reads

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
        message = "The interpreter of this source's skills does not run. An operator must correct its key `python`."
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False) from None
    return Interpreter(executable, f"CPython {version}", _reads(prefix, base, str(Path(executable).parent)))


def _reads(*places: str) -> tuple[str, ...]:
    resolved = dict.fromkeys(os.path.realpath(place) for place in places)
    return tuple(place for place in resolved if place != "/usr" and not place.startswith("/usr/"))


def _ignore_output(lines: bytes, stream: str) -> None: ...
