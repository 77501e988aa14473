from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from tests.kills import KILLS
from tests.unit.adapters.mcp.links import (
    PYTHON_PATH,
    ROOT,
    SERVERS,
    call,
    descriptors,
    group_members,
    is_alive,
    kill,
    linked,
    odd,
    pid_of,
    pipes_of,
    program,
    soon,
    text_of,
    until,
    within,
)
from toolhub_service.adapters.mcp.failures import Breakage, breakage_of
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms
from toolhub_service.adapters.mcp.transports.lines import BYTES_MAX, LINES_MAX, Lines, Tail, TooLong
from toolhub_service.adapters.mcp.transports.reaper import REAPER, RUN_VARIABLE
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure


def test_lines_arrive_whole_in_any_pieces() -> None:
    text = b'{"a":1}\n\n{"b":2}\r\nlast'
    for size in (1, 2, 5, 100):
        lines = Lines(1_000)
        found = [line for start in range(0, len(text), size) for line in lines.feed(text[start : start + size])]
        assert found == [b'{"a":1}', b"", b'{"b":2}\r']


@pytest.mark.parametrize("size", [7, 1_000, 100_000])
@pytest.mark.parametrize(
    ("line", "answers", "is_unasked"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"' + b"x" * 9_000 + b'"}}', 7, False),
        (b'{"result":{"x":"' + b"x" * 9_000 + b'"},"jsonrpc":"2.0","id":8}', 8, False),
        (b'{"result":{"x":"' + b"x" * 9_000 + b'"},"id":"a-1","jsonrpc":"2.0"}', "a-1", False),
        (b'{"result":{"x":"' + b"x" * 9_000 + b'","y":{"z":1,"id":9}}}', None, False),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":"' + b"x" * 9_000 + b'"}', None, True),
        (b"x" * 9_000, None, False),
    ],
)
def test_a_line_that_is_too_long_is_dropped_and_fails_the_call_it_answered(
    line: bytes, answers: object, is_unasked: bool, size: int
) -> None:
    lines = Lines(2_000)
    data = line + b'\n{"next":1}\n'
    found: list[bytes | TooLong] = []
    for start in range(0, len(data), size):
        found += lines.feed(data[start : start + size])
        assert sum(map(len, lines._pieces)) <= 2_000
    skipped, following = found
    assert isinstance(skipped, TooLong)
    assert (skipped.answers, skipped.is_unasked) == (answers, is_unasked)
    assert following == b'{"next":1}'


def test_the_tail_of_standard_error_is_bounded_for_any_output() -> None:
    tail = Tail()
    for _ in range(50):
        tail.feed(b"z" * 1_000_000)
        tail.feed(b"\n".join(b"%d" % number for number in range(5_000)))
    tail.feed(b"\nlast words")
    lines = tail.lines()
    assert lines[-1] == "last words"
    assert len(lines) <= LINES_MAX + 1
    assert sum(map(len, lines)) <= BYTES_MAX + 2_000


async def test_the_environment_is_made_from_nothing_and_no_descriptor_is_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLHUB_SECRET_CANARY", "hunter2")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        async with linked(odd("chatty", protocol="2025-11-25")) as link:
            environment, open_now, folder = json.loads(text_of(await call(await link.session(soon()), "environment")))
    finally:
        os.close(read)
        os.close(write)
    names = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "PYTHONPATH", "LC_CTYPE", RUN_VARIABLE}
    assert set(environment) <= names
    assert environment["PYTHONPATH"] == PYTHON_PATH
    assert len(open_now) <= 4
    assert folder == str(ROOT)


def launched(folder: Path, name: str, pass_env: tuple[str, ...] | None, **more: Any) -> McpTerms:
    """An odd program, started by a launcher of the name `npx`."""
    npx = folder / "npx"
    npx.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    npx.chmod(0o755)
    where = odd(name).where
    assert isinstance(where, StdioTerms)
    return McpTerms("stage", replace(where, command=str(npx), pass_env=pass_env), **more)


@pytest.mark.parametrize(
    ("pass_env", "passed"), [(None, {"HTTPS_PROXY", "NPM_CONFIG_REGISTRY"}), ((), set()), (("CORP",), {"CORP"})]
)
@pytest.mark.promise("sources.proxy")
async def test_a_launcher_gets_proxy_and_registry_variables_unless_configured_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_env: tuple[str, ...] | None, passed: set[str]
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2hunter2@proxy:3128")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://npm.example")
    monkeypatch.setenv("CORP", "x")
    terms = launched(tmp_path, "chatty", pass_env, protocol="2025-11-25")
    async with linked(terms) as link:
        got, _, _ = json.loads(text_of(await call(await link.session(soon()), "environment")))
    assert {"HTTPS_PROXY", "NPM_CONFIG_REGISTRY", "CORP"} & set(got) == passed
    assert ("hunter2hunter2" in terms.secrets) == ("HTTPS_PROXY" in passed)


async def test_a_slow_launcher_is_reported_with_the_likely_cause(tmp_path: Path) -> None:
    async with linked(launched(tmp_path, "silent", None, connect_timeout_s=1.0)) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon(600))
        assert "pass_env" in failure.value.error.message
        assert link.diagnostics()[-1].startswith("next try: ")


async def test_lines_that_are_no_messages_are_ignored_and_kept_for_diagnostics() -> None:
    async with linked(odd("chatty", protocol="2025-11-25")) as link:
        session = await link.session(soon())
        assert session.server == "chatty 1"
        await call(session, "pid")
        assert any("hello from the logger" in line for line in link.diagnostics())


@pytest.mark.promise("mcp.one-call-fails")
@pytest.mark.parametrize("tool", ["big", "last"])
async def test_an_answer_that_is_too_large_fails_its_call_alone(tool: str) -> None:
    async with linked(odd("chatty", protocol="2025-11-25", max_message_bytes=100_000)) as link:
        session = await link.session(soon())
        with pytest.raises(MCPError) as failure:
            await call(session, tool)
        assert breakage_of(failure.value) is Breakage.TOO_LARGE
        assert text_of(await call(session, "pid")) == str(pid_of(link))
        assert link.connects == 1


async def test_a_large_message_without_a_known_id_ends_the_connection() -> None:
    async with linked(odd("chatty", protocol="2025-11-25", max_message_bytes=100_000)) as link:
        with pytest.raises(MCPError):
            await within(30, call(await link.session(soon()), "nameless"))
        again = await link.session(soon())
        assert link.connects == 2
        assert text_of(await call(again, "pid")) == str(pid_of(link))


async def test_a_program_that_does_not_read_delays_nobody_else() -> None:
    async with linked(odd("stops", protocol="2025-11-25")) as link:
        session = await link.session(soon())
        calls = [asyncio.create_task(call(session, "any", text="x" * 100_000)) for _ in range(20)]
        await until(lambda: pipes_of(link).outbox.is_held)
        for task in calls:
            task.cancel()
        results = await within(20, asyncio.gather(*calls, return_exceptions=True))
        assert all(isinstance(result, asyncio.CancelledError | MCPError) for result in results)
        kill(pid_of(link))


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (
            McpTerms("harness", StdioTerms("no-such-program")),
            "Its program no-such-program was not found on the hub's PATH",
        ),
        (McpTerms("harness", StdioTerms("/no/such/program")), "Its program program was not found where `command` says"),
        (McpTerms("harness", StdioTerms(str(SERVERS / "odd_programs.py"))), "is not executable"),
        (McpTerms("harness", StdioTerms("/bin/cat", cwd="/no/such/folder")), "working directory does not exist"),
        (odd("exits"), "exit code 3"),
        (odd("babbles"), "not JSON-RPC"),
        (odd("silent", connect_timeout_s=1.0), "did not answer the handshake within 1 s"),
    ],
)
async def test_a_program_that_is_no_server_is_unavailable_with_its_reason(terms: McpTerms, reason: str) -> None:
    async with linked(terms) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon(600))
        error = failure.value.error
        assert error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert reason in error.message
        assert error.retry_after_s is not None
        assert error.retry_after_s > 0
        assert "hunter2" not in error.message + "".join(link.diagnostics())


@pytest.mark.parametrize("deadline_s", [0.0005, 0.002, 0.01, 0.05])
async def test_a_deadline_is_reported_as_such_also_while_the_program_is_being_started(deadline_s: float) -> None:
    """The program that the hub ends then was not "killed (signal 9)" by somebody else."""
    async with linked(odd("silent", connect_timeout_s=deadline_s)) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon(600))
        assert f"did not answer the handshake within {deadline_s:g} s" in failure.value.error.message


async def test_standard_error_is_kept_for_diagnostics_with_secrets_hidden() -> None:
    async with linked(odd("exits")) as link:
        with pytest.raises(ToolFailure):
            await link.session(soon())
        lines = link.diagnostics()
        assert any(line.startswith("stderr: ") and "cannot read /etc/server.conf" in line for line in lines)
        assert any(line.startswith("connections: 0 in ") for line in lines[-3:]), "the hub's own words are never cut"
        assert not any("hunter2" in line for line in lines)


async def test_a_program_that_ignores_signals_is_killed_with_its_children() -> None:
    async with linked(odd("deaf", protocol="2025-11-25")) as link:
        await link.session(soon())
        group = pid_of(link)
        await until(lambda: len(group_members(group)) == 2)
    await until(lambda: group_members(group) == [])
    assert not is_alive(group)


async def test_children_that_outlive_their_leader_are_killed() -> None:
    async with linked(odd("deaf", protocol="2025-11-25")) as link:
        await link.session(soon())
        group = pid_of(link)
        await until(lambda: len(group_members(group)) == 2)
        kill(group)
        await link.session(soon())
        await until(lambda: group_members(group) == [])
    assert not is_alive(group)


@pytest.mark.promise("mcp.no-orphans")
@pytest.mark.parametrize("is_killed", [False, True])
async def test_processes_in_sessions_of_their_own_end_with_their_source_even_when_its_leader_is_killed(
    is_killed: bool,
) -> None:
    async with linked(odd("daemonizes", protocol="2025-11-25")) as link, linked(odd("daemonizes")) as other:
        await link.session(soon())
        await other.session(soon())
        run, others = run_of(pid_of(link)), run_of(pid_of(other))
        assert len(processes_of(run)) == len(processes_of(others)) == 2
        if is_killed:
            kill(pid_of(link))
            await until(lambda: link.connects == 2)
        else:
            await link.close()
        await until(lambda: processes_of(run) == [])
        assert len(processes_of(others)) == 2, "those of another source stay"
    await until(lambda: processes_of(others) == [])


@pytest.mark.promise("mcp.no-orphans")
@pytest.mark.parametrize("generation", ["modern", "legacy"])
async def test_many_kills_leave_nothing_behind(generation: str) -> None:
    terms = program("-S", str(SERVERS / "scripted.py"), generation)
    async with linked(terms) as link:
        await link.session(soon())
        before, tasks, pids = descriptors(), len(asyncio.all_tasks()), set()
        for round_ in range(KILLS if generation == "modern" else min(KILLS, 10)):
            session = await link.session(soon())
            pids.add(pid_of(link))
            assert text_of(await call(session, "echo", text=f"{round_}")) == f"{round_}"
            waiting = asyncio.create_task(call(session, "hangs"))
            await call(session, "echo", text="the other is under way")
            kill(pid_of(link))
            with pytest.raises(MCPError):
                await within(30, waiting)
        await link.session(soon())
        await until(lambda: descriptors() <= before + 1)
        assert len(asyncio.all_tasks()) <= tasks
        assert len(pids) == link.connects - 1
        assert [pid for pid in pids if group_members(pid)] == []


async def test_the_watcher_ends_when_no_program_runs() -> None:
    async with linked(odd("chatty", protocol="2025-11-25")) as link:
        await link.session(soon())
        watcher = REAPER._process
        assert watcher is not None
    assert REAPER._process is None
    await until(lambda: not is_alive(watcher.pid))


async def test_a_watcher_that_was_killed_is_replaced() -> None:
    async with linked(odd("chatty", protocol="2025-11-25")) as link:
        await link.session(soon())
        first = REAPER._process
        assert first is not None
        kill(first.pid)
        await until(lambda: not is_alive(first.pid))
        async with linked(odd("chatty", protocol="2025-11-25")) as other:
            await other.session(soon())
            assert REAPER._process is not None
            assert REAPER._process.pid != first.pid
            assert text_of(await call(await link.session(soon()), "pid"))


_HUB = """
import asyncio, sys
from tests.unit.adapters.mcp.links import linked, odd, pid_of, soon
async def main():
    async with linked(odd(sys.argv[1], protocol="2025-11-25")) as link:
        await link.session(soon())
        print(pid_of(link), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.promise("mcp.no-orphans")
@pytest.mark.parametrize("name", ["deaf", "daemonizes"])
async def test_a_hub_that_is_killed_leaves_no_server_behind_even_one_that_ignores_signals(
    tmp_path: Path, name: str
) -> None:
    script = tmp_path / "hub.py"
    script.write_text(_HUB)
    hub = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(script), name),
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
    )
    assert hub.stdout is not None
    run = run_of(int(await within(30, hub.stdout.readline())))
    await until(lambda: len(processes_of(run)) == 2)
    hub.send_signal(signal.SIGKILL)
    await hub.wait()
    await until(lambda: processes_of(run) == [])


def run_of(pid: int) -> bytes:
    """Return the variable by which what a program starts is found."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(variable for variable in variables if variable.startswith(RUN_VARIABLE.encode()))


def processes_of(run: bytes) -> list[int]:
    """Return the live processes that were started with that variable."""
    found = []
    for entry in Path("/proc").iterdir():
        # It may go while it is read.
        with suppress(OSError):
            if entry.name.isdigit() and run in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
