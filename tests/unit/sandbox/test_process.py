from __future__ import annotations

import asyncio
import inspect
import os
import resource
import select
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from toolhub_service.sandbox.capture import Capture
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.process import FLOOD_BYTES, Finished, OnOutput, StopWhen, run_process


async def run(
    code: str,
    folder: Path,
    *,
    seconds: float = 20.0,
    keep_bytes: int = 1000,
    on_output: OnOutput = lambda lines, stream: None,
    stop_when: StopWhen | None = None,
) -> Finished:
    return await run_process(
        Program(["/bin/sh", "-c", code], {"PATH": "/usr/bin:/bin"}, str(folder)),
        deadline_s=asyncio.get_running_loop().time() + seconds,
        keep_bytes=keep_bytes,
        on_output=on_output,
        stop_when=stop_when,
    )


def is_gone(pid_file: Path) -> bool:
    """Whether the process has ended or ends soon: it was sent SIGKILL, and is not our child to wait for."""
    try:
        process = os.pidfd_open(int(pid_file.read_text()))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 5)[0])
    finally:
        os.close(process)


@pytest.mark.promise("exec.ends-in-time")
async def test_a_deadline_ends_grandchildren_that_ignore_being_asked(tmp_path: Path) -> None:
    grandchild = "sh -c 'echo $$ > grandchild; exec sleep 60'"
    code = f"(trap '' TERM; {grandchild}) & trap '' TERM; wait; sleep 60"
    finished = await run(code, tmp_path, seconds=0.3)
    assert finished.timed_out
    assert finished.exit_code == 128 + 9
    assert is_gone(tmp_path / "grandchild")


async def test_a_program_that_ends_when_asked_is_not_killed(tmp_path: Path) -> None:
    finished = await run("trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done", tmp_path, seconds=0.3)
    assert (finished.timed_out, finished.exit_code) == (True, 3)
    assert bytes(finished.stdout.kept) == b"bye\n"


async def test_background_children_end_with_their_parent_and_do_not_hold_the_call(tmp_path: Path) -> None:
    finished = await run("sleep 600 & echo $! > child; echo done", tmp_path)
    assert not finished.timed_out
    assert bytes(finished.stdout.kept) == b"done\n"
    assert is_gone(tmp_path / "child")


async def test_a_process_that_left_the_group_does_not_hold_the_call(tmp_path: Path) -> None:
    leave = "setsid sh -c 'echo $$ > left; exec sleep 600' & until [ -s left ]; do sleep 0.01; done"
    finished = await run(f"{leave}; echo done", tmp_path)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert not finished.timed_out
    assert bytes(finished.stdout.kept) == b"done\n"


async def test_cancelling_kills_the_group_before_it_returns(tmp_path: Path) -> None:
    up = asyncio.Event()
    code = "echo $$ > parent; sh -c 'echo $$ > child; echo up; exec sleep 60' & wait"
    running = asyncio.ensure_future(run(code, tmp_path, on_output=lambda lines, stream: up.set()))
    await up.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(tmp_path / "parent")
    assert is_gone(tmp_path / "child")


async def test_cancelling_twice_still_kills(tmp_path: Path) -> None:
    up = asyncio.Event()
    code = "trap '' TERM; echo $$ > parent; echo up; while :; do sleep 60; done"
    running = asyncio.ensure_future(run(code, tmp_path, on_output=lambda lines, stream: up.set()))
    await up.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(tmp_path / "parent")


async def test_a_flood_is_ended_and_never_held_in_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finished = await run("yes", tmp_path)
    assert finished.flooded
    assert finished.stdout.total_bytes >= FLOOD_BYTES
    assert len(finished.stdout.kept) == 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


async def test_both_streams_count_towards_a_flood(tmp_path: Path) -> None:
    assert (await run("yes >&2", tmp_path)).flooded


async def test_a_program_that_ends_at_once_leaves_no_watch_behind(tmp_path: Path) -> None:
    watched: list[Coroutine[Any, Any, None]] = []

    async def watch() -> None:
        await asyncio.Event().wait()

    def begin(_: Callable[[signal.Signals], None]) -> Coroutine[Any, Any, None]:
        watched.append(watch())
        return watched[-1]

    for _ in range(50):
        finished = await run("exit 3", tmp_path, stop_when=begin)
        assert (finished.exit_code, finished.was_stopped) == (3, False)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    assert {inspect.getcoroutinestate(each) for each in watched} <= {inspect.CORO_CLOSED}


async def test_a_program_that_cannot_be_started_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        await run_process(
            Program(["/nowhere/x"], {}, str(tmp_path)),
            deadline_s=1e9,
            keep_bytes=0,
            on_output=lambda lines, stream: None,
        )


async def test_the_program_leads_a_session_of_its_own(tmp_path: Path) -> None:
    finished = await run("cut -d' ' -f1,5,6 /proc/$$/stat", tmp_path)
    pid, group, session = finished.stdout.kept.split()
    assert pid == group == session
    assert int(pid) != os.getpid()


def test_a_capture_keeps_the_first_bytes_and_hands_out_whole_lines_once() -> None:
    capture = Capture(6)
    assert [capture.feed(piece) for piece in (b"ab", b"c\nd", b"e\nfgh\n", b"i\n")] == [b"", b"abc\n", b"", b""]
    assert capture.rest() == b"de"
    assert capture.rest() == b""
    assert (bytes(capture.kept), capture.total_bytes) == (b"abc\nde", 13)
    assert capture.text(100) == ("abc\nde", True)
    assert capture.text(3) == ("abc", True)


def test_a_capture_that_lost_nothing_is_marked_complete() -> None:
    capture = Capture(100)
    capture.feed("grüße".encode())
    assert capture.text(5) == ("grüße", False)
    assert capture.text(4) == ("grüß", True)
