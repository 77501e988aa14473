from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import ElicitRequestFormParams, ElicitResult

from tests.unit.adapters.mcp.links import (
    Chance,
    at,
    call,
    descriptors,
    kill,
    linked,
    odd,
    pid_of,
    plain_http,
    program,
    soon,
    text_of,
    until,
    within,
)
from toolhub_service.adapters.mcp.backoff import CAP_S, FLOOR_S, LASTED_S, Backoff
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms
from toolhub_service.adapters.mcp.link import McpLink
from toolhub_service.adapters.mcp.questions.session_callback import elicitation_callback
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure

PLAIN = ("-m", "tests.fakes.mcp_servers.plain")


class High:
    """Always the most."""

    def uniform(self, low: float, high: float) -> float:
        return high

    def token_hex(self, size_bytes: int) -> str:
        return "00" * size_bytes


def test_pauses_double_to_a_cap_and_start_anew_after_a_connection_that_stood() -> None:
    backoff = Backoff(High())
    assert [backoff.count_failure() for _ in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, CAP_S, CAP_S, CAP_S]
    assert backoff.after_loss(LASTED_S - 1) == CAP_S
    assert backoff.after_loss(LASTED_S) == 0.0
    assert backoff.after_loss(0.1) == 1.0
    assert all(Backoff(Chance()).count_failure() >= FLOOR_S for _ in range(100))


@pytest.mark.parametrize(
    ("protocol", "spoken"),
    [("auto", "2026-07-28"), ("2026-07-28", "2026-07-28"), ("2025-11-25", "2025-11-25")],
)
async def test_both_protocol_versions_are_spoken_over_stdio_with_a_hundred_calls_at_once(
    protocol: Any, spoken: str
) -> None:
    async with linked(program(*PLAIN, protocol=protocol)) as link:
        session = await link.session(soon())
        assert (session.protocol, session.is_modern) == (spoken, spoken == "2026-07-28")
        assert session.server == "plain 1.0"
        results = await within(20, asyncio.gather(*(call(session, "add", a=n, b=1) for n in range(100))))
        assert [text_of(result) for result in results] == [str(n + 1) for n in range(100)]


@pytest.mark.parametrize("flags", [(), ("--json",), ("--generation", "2025-11-25")])
async def test_both_protocol_versions_are_spoken_over_http_with_a_hundred_calls_at_once(flags: tuple[str, ...]) -> None:
    async with plain_http(*flags) as server, linked(at(server.url)) as link:
        session = await link.session(soon())
        assert session.is_modern == ("--generation" not in flags)
        results = await within(20, asyncio.gather(*(call(session, "add", a=n, b=1) for n in range(100))))
        assert [text_of(result) for result in results] == [str(n + 1) for n in range(100)]


async def test_a_server_of_the_wrong_era_is_refused() -> None:
    async with linked(odd("chatty", protocol="2026-07-28")) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon())
        assert "the source requires 2026-07-28" in failure.value.error.message


@pytest.mark.parametrize("protocol", ["2026-07-28", "2025-11-25"])
async def test_changed_tools_and_new_connections_are_reported(protocol: Any) -> None:
    link = McpLink(program(*PLAIN, protocol=protocol), Chance())
    notices = 0

    def changed() -> None:
        nonlocal notices
        notices += 1

    link.listen(changed)
    link.start()
    try:
        session = await link.session(soon())
        assert notices == 0
        await call(session, "change")
        await until(lambda: notices >= 1)
        before = notices
        kill(pid_of(link))
        await until(lambda: not link.is_connected)
        await link.session(soon())
        assert notices > before
    finally:
        await link.close()


async def test_changes_are_heard_over_http_also_after_the_stream_broke() -> None:
    async with plain_http() as server:
        link = McpLink(at(server.url), Chance())
        changed = asyncio.Event()
        link.listen(changed.set)
        link.start()
        try:
            session = await link.session(soon())
            await server.kill()
            await server.start()
            await within(30, changed.wait())
            changed.clear()
            await call(session, "change")
            await within(30, changed.wait())
            assert link.connects == 1
        finally:
            await link.close()


async def test_start_and_close_wait_for_nobody() -> None:
    link = McpLink(odd("silent", connect_timeout_s=600), Chance())
    link.start()
    await until(lambda: link._connection is not None and link._connection._program is not None)
    waiting = asyncio.create_task(link.session(soon()))
    await asyncio.sleep(0)
    await within(30, link.close())
    with pytest.raises(ToolFailure) as failure:
        await waiting
    assert not failure.value.error.is_retryable
    with pytest.raises(ToolFailure):
        await link.session(soon())


async def test_a_call_waits_for_the_connection_no_longer_than_it_has_time() -> None:
    async with linked(odd("silent", connect_timeout_s=600)) as link:
        with pytest.raises(ToolFailure) as failure:
            await within(30, link.session(soon(0.2)))
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert "still being made" in failure.value.error.message


async def test_a_call_that_waits_hurries_the_next_try_but_not_below_the_floor(tmp_path: Path) -> None:
    path = tmp_path / "server"
    link = McpLink(McpTerms("late", StdioTerms(str(path))), High())
    link.start()
    try:
        for _ in range(5):
            with pytest.raises(ToolFailure):
                await link.session(soon())
        attempts, began_s = link._attempts, soon(0)
        assert attempts >= 3
        while soon(0) - began_s < 5 * FLOOR_S:
            with pytest.raises(ToolFailure):
                await link.session(soon())
        assert link._attempts - attempts <= 7
    finally:
        await link.close()


@pytest.mark.promise("mcp.heals")
async def test_a_link_whose_server_comes_late_connects_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "server"
    terms = program(*PLAIN)
    assert isinstance(terms.where, StdioTerms)
    late = StdioTerms(str(path), terms.where.args, terms.where.env, terms.where.cwd)
    link = McpLink(McpTerms("late", late), Chance())
    changed = asyncio.Event()
    link.listen(changed.set)
    link.start()
    try:
        with pytest.raises(ToolFailure):
            await link.session(soon())
        path.with_suffix(".new").write_text(f'#!/bin/sh\nexec {terms.where.command} "$@"\n')
        path.with_suffix(".new").chmod(0o700)
        path.with_suffix(".new").rename(path)
        await within(20, changed.wait())
        assert link.is_connected
    finally:
        await link.close()


async def test_a_link_tells_once_that_a_server_went_and_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "server"
    terms = program(*PLAIN)
    assert isinstance(terms.where, StdioTerms)
    path.write_text(f'#!/bin/sh\nexec {terms.where.command} "$@"\n')
    path.chmod(0o700)
    link = McpLink(
        McpTerms("gone", StdioTerms(str(path), terms.where.args, terms.where.env, terms.where.cwd)), Chance()
    )
    changed: asyncio.Queue[None] = asyncio.Queue()
    link.listen(lambda: changed.put_nowait(None))
    link.start()
    try:
        await link.session(soon())
        assert changed.empty()
        path.unlink()
        kill(pid_of(link))
        await within(20, changed.get())
        assert not link.is_connected
        for _ in range(2):
            with pytest.raises(ToolFailure):
                await link.session(soon())
        assert changed.empty()
    finally:
        await link.close()


async def test_a_session_that_is_called_lost_is_left_and_another_one_made() -> None:
    async with linked(program(*PLAIN)) as link:
        session = await link.session(soon())
        waiting = asyncio.create_task(call(session, "sleep", seconds=60))
        await call(session, "echo", text="the other is under way")
        link.drop_session(session, "It does not know us any more.")
        assert not link.is_connected
        with pytest.raises(MCPError):
            await within(30, waiting)
        again = await link.session(soon())
        assert link.connects == 2
        link.drop_session(session, "an old one is lost already")
        assert await link.session(soon()) is again
        assert any("does not know us any more" in line for line in link.diagnostics())


async def test_a_cancelled_caller_harms_nobody_and_the_server_hears_of_it() -> None:
    async with linked(program(*PLAIN)) as link:
        session = await link.session(soon())
        waiting = asyncio.create_task(call(session, "sleep", seconds=60))
        await call(session, "echo", text="the other is under way")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(60):
            while text_of(await call(session, "cancelled")) != "1":
                pass
        assert link.connects == 1


async def test_a_link_that_is_closed_leaves_nothing() -> None:
    async with linked(program(*PLAIN)) as link:
        await link.session(soon())
    before, tasks = descriptors(), len(asyncio.all_tasks())
    async with plain_http() as server, linked(at(server.url)) as other, linked(program(*PLAIN)) as link:
        await asyncio.gather(link.session(soon()), other.session(soon()))
    await until(lambda: descriptors() <= before)
    assert len(asyncio.all_tasks()) == tasks


async def test_questions_are_answered_as_the_operator_said() -> None:
    def form(**properties: object) -> ElicitRequestFormParams:
        schema = {"type": "object", "properties": properties, "required": ["colour"]}
        return ElicitRequestFormParams(message="?", requested_schema=schema)

    assert elicitation_callback("decline") is None
    context: Any = None
    with_default = form(colour={"type": "string", "default": "red"}, size={"type": "number"})
    ask, by_defaults = elicitation_callback("ask"), elicitation_callback("defaults")
    assert ask is not None
    assert by_defaults is not None
    declined = ElicitResult(action="decline")
    assert await ask(context, with_default) == declined
    assert await by_defaults(context, with_default) == ElicitResult(action="accept", content={"colour": "red"})
    assert await by_defaults(context, form(colour={"type": "string"})) == declined
