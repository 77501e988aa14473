"""A connection that dies in the middle of a call, and nobody is told to start a hub or to try again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.command_server import run
from tests.e2e.terminal import environment
from tests.hub import RunningHub, running_hub
from tests.rpc.severable_proxy import SeverableProxy, wire_to
from toolhub_client import ConnectionLost, HubUnavailable, connect
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class NoInput(ToolInput, frozen=True):
    pass


class Done(ToolOutput, frozen=True):
    done: bool


class Effect(Tool[NoInput, Done]):
    """Has its effect, and answers when it is allowed to."""

    name = "held/effect.once"
    description = "Has an effect."
    In, Out = NoInput, Done

    def __init__(self) -> None:
        self.had = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self, args: NoInput, context: ToolContext) -> Done:
        self.had.set()
        await self.may_end.wait()
        return Done(done=True)


@dataclass
class Line:
    """A hub behind a wire that can be cut."""

    hub: RunningHub
    wire: SeverableProxy
    effect: Effect
    home: Path
    codes: list[int] = field(default_factory=list)

    @property
    def address(self) -> str:
        return urlsplit(self.wire.url).netloc

    async def command(self, *words: str) -> tuple[str, str, int]:
        """(standard output, standard error, exit code) of a command whose wire is cut after the effect."""
        env = environment(self.home, TOOLHUB_ADDRESS=self.address)
        running = asyncio.create_task(asyncio.to_thread(run, words, stdin="", env=env, cwd=self.home, timeout_s=60))
        await self.effect.had.wait()
        self.wire.cut()
        done = await running
        self.effect.may_end.set()
        return done.stdout, done.stderr, done.returncode


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    effect = Effect()
    async with running_hub(tmp_path, tools=[effect]) as hub, wire_to(f"http://{hub.address}") as wire:
        yield Line(hub, wire, effect, tmp_path)
        effect.may_end.set()


async def test_a_call_that_lost_its_answer_is_named_with_the_way_to_find_out(line: Line) -> None:
    _, err, code = await line.command("call", "held/effect.once", "--purpose", "a test")
    assert code == 4
    assert "broke before the answer came" in err
    assert "may have had its effect" in err
    assert "toolhub serve" not in err
    call_id = err.partition("--call-id ")[2].split()[0]
    found = [each.event.call_id for each in await line.hub.events()]
    assert call_id in found
    assert "--idempotency-key" in err


async def test_a_repetition_with_the_key_is_offered_where_there_is_one(line: Line) -> None:
    words = ("call", "held/effect.once", "--purpose", "a test", "--idempotency-key", "once-1")
    _, err, code = await line.command(*words)
    assert code == 4
    assert "run the same command again: with its idempotency key the effect happens once" in err


async def test_a_program_that_lost_its_answer_is_named_too(line: Line) -> None:
    program = line.home / "program.py"
    program.write_text("await held.effect_once()")
    _, err, code = await line.command("program", "run", str(program))
    assert (code, "may have had its effect" in err, "toolhub serve" in err) == (4, True, False)
    assert "toolhub audit query --call-id call_" in err


async def test_a_hub_that_is_not_there_is_not_taken_for_a_lost_answer(line: Line) -> None:
    env = environment(line.home, TOOLHUB_ADDRESS="127.0.0.1:1")
    done = await asyncio.to_thread(run, ("call", "held/effect.once"), stdin="", env=env, cwd=line.home, timeout_s=60)
    assert (done.returncode, "toolhub serve" in done.stderr, "effect" in done.stderr) == (3, True, False)


async def test_the_python_client_tells_a_lost_answer_from_a_call_that_was_never_sent(line: Line) -> None:
    async with connect(line.address, retry_s=0.1) as hub:
        asked = asyncio.create_task(hub.invoke("held/effect.once", purpose="a test"))
        await line.effect.had.wait()
        line.wire.cut()
        with pytest.raises(ConnectionLost, match="may have had its effect"):
            await asked
    async with connect("127.0.0.1:1", retry_s=0.1) as nobody:
        with pytest.raises(HubUnavailable) as away:
            await nobody.invoke("held/effect.once", purpose="a test")
    assert not isinstance(away.value, ConnectionLost)
