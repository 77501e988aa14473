"""Who may do what: one program of probes in each kind of process that the hub starts, at each level of confinement.

`WALLS` is the table. What is absent from it is what threat-model.md promises; what is in it, the page says plainly.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.fakes.commands import confinement_of
from tests.fakes.ladders import ladder_of
from tests.fakes.langchain_source import gone
from tests.security.forbidden_resources import (
    PORTS,
    SECRET,
    STREAMS,
    ForbiddenResources,
    of_marker,
    open_the_way,
    surroundings,
)
from toolhub_service.adapters.langchain.no_tracing import worker_environment
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.confined_start import write_start
from toolhub_service.sandbox.hidden import HiddenPaths
from toolhub_service.sandbox.process import Finished, run_process
from toolhub_service.sandbox.request import Bounds, SandboxRequest
from toolhub_service.tools.web import page_reader

PROBES: Final = Path(__file__).with_name("escape_probes.py").read_text()
ANY: Final = ("*",)
PYTHON: Final = ("/usr/bin/python3", "-I", "-c", PROBES)

OWN_USER: Final = {"fs_process_files": ("other environ", "other mem", "other maps", "other auxv"), "tracing": ANY}
"""Processes of the hub's user, except the hub itself (`hide_memory`)."""
NETWORK: Final = {"tcp_ports": PORTS, "unix_sockets_by_abstract_name": ANY, "socket_families": ANY}
UNIX: Final = {"unix_sockets_by_path": (*STREAMS, "log")}
WALLS: Final[dict[tuple[str, str], dict[str, Collection[str]]]] = {
    ("script", "bubblewrap"): {},
    ("script", "landlock"): {},
    ("script with tools", "bubblewrap"): {},
    ("script with tools", "landlock"): {},
    ("program", "bubblewrap"): {},
    ("program", "landlock"): {},
    ("command", "bubblewrap"): {},
    ("command", "landlock"): {},
    # All files and processes of the hub's user except the hub's memory, but no socket of any kind.
    ("command", "rlimits"): {
        "fs_read": ANY,
        "fs_workspace_of_another": ANY,
        "shared_memory": ANY,
        **OWN_USER,
    },
    ("langchain", "bubblewrap"): {"shared_memory": ANY, **NETWORK, **UNIX, **OWN_USER},
    ("page parser", "landlock"): {"shared_memory": ANY},
    # Names in the data folder, not what its files say.
    ("langchain", "landlock"): {
        "fs_workspace_of_another": ANY,
        "shared_memory": ANY,
        **NETWORK,
        **UNIX,
        **OWN_USER,
    },
}
"""By kind and level: the probes that may reach something, and what. Scripts and programs never start below Landlock.

Of LangChain and of a command without both, only the probes of `SAFE_TO_TRY` run: others would change the machine.
"""
SAFE_TO_TRY: Final = (
    "descriptors",
    "fs_read",
    "fs_workspace_of_another",
    "fs_process_files",
    "tcp_ports",
    "unix_sockets_by_path",
    "unix_sockets_by_abstract_name",
    "socket_families",
    "shared_memory",
    "tracing",
    "environment",
)


@pytest.mark.promise("sandbox.no-escape")
@pytest.mark.parametrize(("kind", "level"), list(WALLS))
async def test_each_kind_of_process_reaches_what_the_table_says_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, level: str
) -> None:
    monkeypatch.setenv("TOOLHUB_SECRET", SECRET)
    open_the_way(tmp_path)
    user = 65_534 if os.geteuid() == 0 and kind in OF_LADDER else os.geteuid()
    with surroundings(tmp_path, user) as around:
        finished = await START[kind](level, around)
        report = json.loads(finished.stdout.text(100_000)[0] or "null")
        assert report is not None, finished.stderr.text(3_000)
        allowed = WALLS[kind, level]
        beyond = {
            name: found
            for name, found in report["escaped"].items()
            if name not in allowed or not (allowed[name] is ANY or set(found) <= set(allowed[name]))
        }
        assert beyond == {}
        assert report["tried"] == len(SAFE_TO_TRY) or report["tried"] >= 30
        if "tcp_ports" not in WALLS[kind, level]:
            around.untouched()
        assert all([await gone(pid) for pid in of_marker(around.given["marker"])])


async def started_script(level: str, around: ForbiddenResources, descriptors: tuple[int, ...] = ()) -> Finished:
    ladder = await ladder_of(level, around.key.parent)  # type: ignore[arg-type]
    with ladder.run_folder() as folder:
        request = SandboxRequest(
            argv_of(around, inherited=descriptors),
            {},
            folder,
            writes=(folder,),
            bounds=Bounds(processes=100),
            descriptors=descriptors,
        )
        async with ladder.confine(request) as confined:
            return await finished_program(confined.program)


async def started_script_with_tools(level: str, around: ForbiddenResources) -> Finished:
    """The door is a socket that is connected: no other use of it leads anywhere."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        return await started_script(level, around, (theirs.fileno(),))


async def started_program(level: str, around: ForbiddenResources) -> Finished:
    """As the interpreter's workers are, which write nowhere: here in the folder of a run, for the probes' own files."""
    ladder = await ladder_of(level, around.key.parent)  # type: ignore[arg-type]
    with ladder.run_folder() as folder, TemporaryDirectory() as own:
        request = SandboxRequest(argv_of(around), {}, "/", bounds=Bounds(processes=100))
        start, found = await write_start(own, ladder, request, "landlock")
        assert found == level
        assert folder
        return await finished_program(Program((start,), {**os.environ}, "/"))


async def started_command(level: str, around: ForbiddenResources) -> Finished:
    made, sandbox = confinement_of(level), Sandbox()
    workspace = around.key.parent / "workspaces" / "own"
    workspace.mkdir()
    chosen = await made.level(sandbox, str(workspace))
    assert chosen == level
    folder = os.open(workspace, os.O_PATH)
    only = SAFE_TO_TRY if level == "rlimits" else ()
    try:
        argv = argv_of(around, only=only)
        with made.program(chosen, argv, sandbox, str(workspace), (str(workspace), folder), {}) as program:
            return await finished_program(program)
    finally:
        os.close(folder)


async def started_langchain_worker(level: str, around: ForbiddenResources) -> Finished:
    hides = HiddenPaths([str(around.key.parent)], confinement_of(level).bubblewrap)
    environment = worker_environment(os.environ)
    program = Program(argv_of(around, only=SAFE_TO_TRY), environment, str(around.outside))
    return await finished_program(await hides.hidden_from(program))


async def started_page_parser(_level: str, around: ForbiddenResources) -> Finished:
    confinement_of("landlock")  # skips where there is none
    return await finished_program(
        Program(argv_of(around, only=SAFE_TO_TRY), {}, "/", confine=page_reader.confine_parser)
    )


START: Final[dict[str, Callable[[str, ForbiddenResources], Awaitable[Finished]]]] = {
    "script": started_script,
    "script with tools": started_script_with_tools,
    "program": started_program,
    "command": started_command,
    "langchain": started_langchain_worker,
    "page parser": started_page_parser,
}
OF_LADDER: Final = ("script", "script with tools", "program")


def argv_of(around: ForbiddenResources, **more: Any) -> tuple[str, ...]:
    return (*PYTHON, json.dumps({**around.given, **more}))


async def finished_program(program: Program) -> Finished:
    return await run_process(
        program,
        deadline_s=asyncio.get_running_loop().time() + 60,
        keep_bytes=100_000,
        on_output=lambda _lines, _stream: None,
    )
