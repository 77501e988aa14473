"""A confined program that a library starts: an executable file that confines itself and then becomes the program.

A library that starts its own workers is given the path of this file. It runs the hub's Python, which makes the same
ladder, confines itself and replaces itself by the program; arguments are passed on.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.request import Bounds, Level, SandboxRequest

_SCRIPT = """\
import sys
sys.path[:] = {path!r}
from toolhub_service.sandbox.confined_start import become
become({terms!r}, {request!r}, {minimum!r}, sys.argv[1:])
"""


async def write_start(folder: str, ladder: Ladder, request: SandboxRequest, minimum: Level) -> tuple[str, Level]:
    """Write the executable into the hub's own `folder`; return its path and the level of confinement.

    Raises ToolFailure TOOL_UNAVAILABLE when the program could not be confined.
    """
    async with ladder.confine(request, minimum=minimum) as confined:
        level = confined.level
    named = (tuple(request.argv), tuple(request.reads), request.folder, _bounds(request.bounds))
    text = _SCRIPT.format(
        path=[entry for entry in sys.path if entry], terms=ladder.terms(), request=named, minimum=minimum
    )
    return _write_start_script(folder, text), level


def _write_start_script(folder: str, text: str) -> str:
    script = Path(folder, "start.py")
    start = Path(folder, "start")
    script.write_text(text)
    start.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(str(script))} "$@"\n')
    start.chmod(0o700)
    return str(start)


def become(terms: dict[str, Any], named: tuple[Any, ...], minimum: Level, arguments: Sequence[str]) -> None:
    """Become the program; called only by the script, never returns."""
    asyncio.run(_exec(Ladder(**terms), named, minimum, arguments))


async def _exec(ladder: Ladder, named: tuple[Any, ...], minimum: Level, arguments: Sequence[str]) -> None:
    argv, reads, folder, bounds = named
    request = SandboxRequest((*argv, *arguments), {}, folder, reads, bounds=Bounds(**bounds), has_input=True)
    async with ladder.confine(request, minimum=minimum) as confined:
        program = confined.program
        if program.confine is not None:
            program.confine()
        for descriptor in program.pass_fds:
            os.set_inheritable(descriptor, True)
        os.chdir(program.working_directory or "/")
        os.execve(program.argv[0], list(program.argv), dict(program.environment))  # noqa: S606 - it is what was confined


def _bounds(bounds: Bounds) -> dict[str, int]:
    return {name: getattr(bounds, name) for name in Bounds.__dataclass_fields__}
