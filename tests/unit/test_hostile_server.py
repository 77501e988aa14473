"""The hostile server is valid MCP where it has to be, in both generations and over both transports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.fakes.mcp_servers.hostile import HostileServer, hostile_http, stdio_command
from tests.fakes.mcp_servers.hostile_calls import KINDS
from tests.fakes.mcp_servers.hostile_tools import LIST_WORDS, page_of, tools_of
from toolhub_service.schema import strict_json

GENERATIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest) -> Connect:
    @asynccontextmanager
    async def connected(*words: str, **options: Any) -> AsyncIterator[Client]:
        if request.param == "stdio":
            command, *args = stdio_command(*words, **options)
            async with Client(StdioServerParameters(command=command, args=args), cache=None) as client:
                yield client
        else:
            async with hostile_http(*words, **options) as (_, url), Client(url, cache=None) as client:
                yield client

    return connected


def text_of(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_good_tools_work_and_change_on_request(connect: Connect, generation: str) -> None:
    async with asyncio.timeout(60), connect("calls", generation=generation) as client:
        assert client.protocol_version == GENERATIONS[generation]
        before = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert text_of(await client.call_tool("echo", {"text": "é"})) == "é"
        assert (await client.call_tool("add", {"a": 2, "b": 3})).structured_content == {"sum": 5}
        await client.call_tool("become", {"words": ["changed", "added"]})
        after = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert after["echo"].description != before["echo"].description
        assert set(after) == {"echo", "add", "extra"}


async def test_a_listener_is_notified_of_a_change() -> None:
    async with (
        asyncio.timeout(60),
        hostile_http() as (server, url),
        Client(url) as client,
        client.listen(tools_list_changed=True) as notices,
    ):
        await server.become("storm")
        kinds = [type(await anext(notices)).__name__ for _ in range(5)]
    assert kinds == ["ToolsListChanged"] * 5


async def test_words_are_read_from_a_file_at_each_list(tmp_path: Path) -> None:
    control = tmp_path / "words"
    control.write_text("renamed")
    command, *args = stdio_command(control=control)
    async with asyncio.timeout(60), Client(StdioServerParameters(command=command, args=args), cache=None) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo_2", "add"]
        control.write_text("removed")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]


async def call(url: str, tool: str, arguments: dict[str, Any], enough: Callable[[bytes], bool]) -> bytes:
    """The bytes of the answer until they are enough, or all of them."""
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 7}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    got = b""
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(timeout=None) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        async for part in answer.aiter_bytes():
            got += part
            if enough(got):
                break
    return got


def is_whole(got: bytes) -> bool:
    return got.endswith(b"\n\n")


def is_plain_answer(got: bytes) -> bool:
    try:
        message = json.loads(got.partition(b"data: ")[2].strip())
    except ValueError:
        return False
    blocks = message.get("result", {}).get("content") if isinstance(message, dict) else None
    return isinstance(blocks, list) and message["id"] == 1 and "error" not in message


@pytest.mark.parametrize("kind", KINDS)
async def test_malformed_answers_of_the_fake_are_malformed(kind: str) -> None:
    async with hostile_http() as (_, url):
        got = await call(url, "garbage", {"kind": kind}, bool if kind == "half" else is_whole)
    believable = {"unknown-block", "unknown-result", "nan", "bad-base64", "twice", "half-character"}
    assert is_plain_answer(got.partition(b"\n\n")[0]) == (kind in believable)


async def test_misbehaving_calls_of_the_fake_misbehave_as_named() -> None:
    async with hostile_http() as (server, url):
        for name in ("huge_result", "huge_error"):
            assert len(await call(url, name, {"megabytes": 3}, is_whole)) > 3_000_000
        await call(url, "endless_progress", {}, lambda got: got.count(b"notifications/progress") > 50)
        assert b"input_required" in await call(url, "asks_forever", {}, is_whole)
        assert b'"a lot"' in await call(url, "bad_structure", {}, is_whole)
        assert (await call(url, "deep_result", {}, is_whole)).count(b"[[") > 40_000
        with pytest.raises(httpx.HTTPError):
            await call(url, "die", {}, is_whole)
        assert [name for name, _ in server.called].count("die") == 1


@pytest.mark.parametrize("word", sorted(LIST_WORDS))
def test_lists_are_what_a_json_writer_gives(word: str) -> None:
    page = page_of({word}, tools_of({word}, "http://127.0.0.1:1/"), "")
    text = json.dumps(page).encode()
    assert json.loads(text)["tools"]
    if word not in {"nan", "surrogate", "huge-description", "deep"}:
        strict_json.loads(text)


async def test_http_errors_of_the_fake_are_no_answers() -> None:
    for word in ("http-redirect", "http-401", "http-500", "http-html", "http-no-head"):
        async with asyncio.timeout(60), hostile_http(word) as (_, url):
            with pytest.raises((MCPError, ExceptionGroup, httpx.HTTPError)):
                async with Client(url):
                    pass


@pytest.mark.parametrize(("words", "survives"), [((), False), (("undead",), True)])
async def test_a_server_that_ignores_signals_outlives_its_input_and_the_request_to_end(
    words: tuple[str, ...], survives: bool
) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*stdio_command("hello-garbage", *words), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}\n')
    assert await process.stdout.readline() == b"Starting up...\n"
    if survives:
        process.terminate()
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 2, "method": "initialize"}\n')
        assert len([await process.stdout.readline() for _ in range(200)][-1]) > 0
        process.kill()
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 60) == (-9 if survives else 0)


async def test_a_server_that_exits_fails_in_its_own_way() -> None:
    pipe = asyncio.subprocess.PIPE
    command = stdio_command("hello-exit")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}\n')
    assert b"canary-4711" in await process.stderr.readline()
    assert await asyncio.wait_for(process.wait(), 60) == 3


def test_word_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        HostileServer("nonsense")
