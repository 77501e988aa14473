"""What each client in Python does of a hub, on each of its connections, and reports as JSON on standard output.

A program beside this file says how its client does it (`Connected`), and calls `report`. The plan comes as JSON in the
first argument: {"control": url, "connections": [{"name": …, "era": …, and what the client connects with}]}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

Answer = dict[str, Any]
OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]


class Connection(Protocol):
    """One connection of a client. What it cannot do raises NotImplementedError, and is left out of the report."""

    def about(self) -> dict[str, Any]: ...

    async def tools(self) -> list[str]: ...

    async def call(self, name: str, arguments: Mapping[str, Any], on_progress: OnProgress | None = None) -> Answer:
        """{isError, text, structured, uris, error}, as `answer` makes it."""

    async def cancel(self, call: asyncio.Task[Answer]) -> None: ...

    async def read(self, uri: str) -> str: ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """What is set when the client hears that the list has changed."""


Connect = Callable[[dict[str, Any], "ScriptedUser"], AbstractAsyncContextManager[Connection]]


def answer(result: Any) -> Answer:
    """Of a CallToolResult of either line of the SDK."""
    given = result.model_dump(mode="json", by_alias=True)
    content = given["content"]
    return {
        "isError": bool(given.get("isError")),
        "text": "".join(block.get("text", "") for block in content),
        "structured": given.get("structuredContent"),
        "uris": [block["uri"] for block in content if block["type"] == "resource_link"],
        "error": (given.get("_meta") or {}).get("toolhub/error"),
    }


class ScriptedUser:
    """Who sits before the client: declines what is asked first, then lets it be approved, and accepts."""

    def __init__(self, control: str) -> None:
        self._control = control
        self.asked: list[str] = []

    async def request(self, what: str, **query: str) -> Any:
        """Ask the test for something."""
        url = f"{self._control}/{what}?{urllib.parse.urlencode(query)}"
        return json.loads(await asyncio.to_thread(_post, url))

    async def answers(self, message: str) -> bool:
        """Whether the person accepts."""
        self.asked.append(message)
        if len(self.asked) == 1:
            return False
        await self.request("approve", id=next(word for word in message.split() if word.startswith("apr_")).strip(":."))
        return True


def _post(url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=90) as response:
        return bytes(response.read())


def report(connect: Connect) -> None:
    plan = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(_all(connect, plan))), flush=True)


async def _all(connect: Connect, plan: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for wanted in plan["connections"]:
        name = wanted["name"]
        try:
            async with asyncio.timeout(100):
                seen[name] = await _one(connect, wanted, ScriptedUser(plan["control"]), f"{os.getpid()}-{name}")
        except BaseException as failed:  # noqa: BLE001 - it is what the user of this client sees
            seen[name] = {"failed": error_text(failed)}
    return seen


def error_text(failed: BaseException) -> str:
    if isinstance(failed, BaseExceptionGroup):
        return "; ".join(map(error_text, failed.exceptions))
    return f"{type(failed).__name__}: {failed}"


async def _one(connect: Connect, wanted: dict[str, Any], person: ScriptedUser, key: str) -> dict[str, Any]:
    async with connect(wanted, person) as client:
        seen: dict[str, Any] = {"about": client.about(), "tools": await client.tools()}
        if wanted.get("searches", True):  # else the client calls nothing that it was not shown
            seen["search"] = await client.call("search_tools", {"query": "read a text file", "limit": 3})
        seen["written"] = await client.call("core__fs_writeText", {"path": f"{key}.txt", "text": key})
        seen["read"] = await client.call("core__fs_readText", {"path": f"{key}.txt"})
        seen["wrong"] = await client.call("core__fs_readText", {"pth": "a.txt"})
        if wanted.get("searches", True):
            seen["absent"] = await client.call("core__fs_readTxt", {"path": "a.txt"})
        if wanted.get("is_embedded"):
            await _embedded(client, key, seen)
        else:
            await _work(client, person, key, seen)
            await _approvals(client, person, key, seen)
            await _changes(client, person, seen)
        return seen


async def _work(client: Connection, person: ScriptedUser, key: str, seen: dict[str, Any]) -> None:
    progress: list[Any] = []

    async def on_progress(step: float, total: float | None, message: str | None) -> None:
        progress.append([step, total, message])
        await person.request("release", key=key)

    seen["worked"] = await client.call("held__work_on", {"key": key}, on_progress)
    seen["progress"] = progress
    given_up = asyncio.create_task(client.call("held__work_on", {"key": f"{key}-2"}))
    await person.request("begun", key=f"{key}-2")
    try:
        await client.cancel(given_up)
    except NotImplementedError:
        await person.request("release", key=f"{key}-2")
    seen["cancelled"] = await person.request("ended", key=f"{key}-2")
    started = await client.call("job_start", {"name": "held__work_on", "arguments": {"key": f"{key}-3"}})
    job = {"job_id": started["structured"]["job_id"]}
    await person.request("begun", key=f"{key}-3")
    status = await client.call("job_status", job)
    await person.request("release", key=f"{key}-3")
    over = await client.call("job_result", {**job, "wait_s": 50})
    seen["job"] = {"started": started, "status": status, "result": over}
    kept = await client.call("held__thing_keep", {"text": f"kept {key}"})
    seen["artifact"] = {"call": kept, "text": await client.read(kept["uris"][0])}


async def _approvals(client: Connection, person: ScriptedUser, key: str, seen: dict[str, Any]) -> None:
    copy = {"source": f"{key}.txt", "destination": f"{key}-1.txt"}
    refused = await client.call("core__fs_copy", copy)
    words = refused["text"].split()
    await person.request("approve", id=next(word for word in words if word.startswith("apr_")).strip(":."))
    seen["approval"] = {"refused": refused, "repeated": await client.call("core__fs_copy", copy)}
    if person.asked:
        granted = await client.call("core__fs_copy", {**copy, "destination": f"{key}-2.txt"})
        seen["approval"] |= {"asked": person.asked, "granted": granted}


async def _changes(client: Connection, person: ScriptedUser, seen: dict[str, Any]) -> None:
    with suppress(NotImplementedError):
        async with client.changes() as changed:
            while not changed.is_set():  # the stream of the older protocol opens beside the first requests
                added = await person.request("change")
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 2.0)
        seen["changed"] = added in await client.tools()


async def _embedded(client: Connection, key: str, seen: dict[str, Any]) -> None:
    long = await client.call("core__fs_writeText", {"path": "long.txt", "text": "0123456789\n" * 30_000})
    assert not long["isError"], long
    started = await client.call("job_start", {"name": "core__fs_readText", "arguments": {"path": f"{key}.txt"}})
    seen["job"] = {"result": await client.call("job_result", {"job_id": started["structured"]["job_id"], "wait_s": 50})}
