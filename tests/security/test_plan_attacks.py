"""What a model, or a client for it, may try to have a plan committed that nobody was shown."""

from __future__ import annotations

from base64 import b32decode, b32encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import ERAS, WITH_KEYS, McpHub, keys_of, mcp_hub
from tests.mcp_server.wire import NEWER, Wire, wire

DELETE = "core__fs_deletePath"
GONE = {"path": "a.txt", "confirm": True}
ACCEPT = {"approval": {"action": "accept", "content": {}}}
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}
SHARED = {"toolhub/request_id": "shared"}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, settings=WITH_KEYS) as opened:
        yield opened


async def call(client: Wire, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The answer to a call in the shared workspace; also one that is a protocol error."""
    return await client.ask("tools/call", {"name": name, "arguments": arguments, "_meta": SHARED, **more})


async def write(client: Wire, path: str, text: str = "x") -> None:
    written = await call(client, "core__fs_writeText", {"path": path, "text": text, "overwrite": True})
    assert not written["result"]["isError"], written


async def exists(client: Wire, path: str) -> bool:
    return not (await call(client, "core__fs_readText", {"path": path}))["result"]["isError"]


def error_of(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer["result"]["isError"], answer
    return dict(answer["result"]["_meta"]["toolhub/error"])


@pytest.mark.promise("mcpserver.plans")
async def test_the_question_about_a_plan_is_no_ones_else_and_of_no_other_call(hub: McpHub) -> None:
    keys = keys_of(hub)
    async with wire(hub.url, NEWER, keys["alice"], ASKS) as alice, wire(hub.url, NEWER, keys["bob"], ASKS) as bob:
        await write(alice, "a.txt")
        await write(alice, "b.txt")
        asked = (await call(alice, DELETE, GONE))["result"]
        assert asked["resultType"] == "input_required"
        state = asked["requestState"]
        assert "plan" not in state
        for client, name, arguments, sent in (
            (bob, DELETE, GONE, state),
            (alice, DELETE, {**GONE, "path": "b.txt"}, state),
            (alice, "core__fs_copy", GONE, state),
            (alice, "call_tool", {"name": DELETE, "arguments": GONE}, state),
            (alice, "job_start", {"name": DELETE, "arguments": GONE}, state),
            (alice, DELETE, GONE, state[:-6] + "AAAAAA"),
            (alice, DELETE, GONE, "plan:plan_" + "a" * 40),
        ):
            answer = await call(client, name, arguments, requestState=sent, inputResponses=ACCEPT)
            assert "error" in answer, (name, arguments)
            assert "requestState" in answer["error"]["message"]
        for responses in ({}, {"approval": {"action": "decline"}}, {"other": ACCEPT["approval"]}):
            declined = error_of(await call(alice, DELETE, GONE, requestState=state, inputResponses=responses))
            assert declined["details"] == {"declined": True}
        assert await exists(alice, "a.txt")
        assert await exists(alice, "b.txt")
        done = await call(alice, DELETE, GONE, requestState=state, inputResponses=ACCEPT)
        assert not done["result"]["isError"], done
        await write(alice, "a.txt", "something else")
        again = (await call(alice, DELETE, GONE, requestState=state, inputResponses=ACCEPT))["result"]
        assert again["resultType"] == "input_required", "what the user has accepted is not what is there now"
        assert await exists(alice, "a.txt")


@pytest.mark.promise("mcpserver.plans")
@pytest.mark.parametrize("era", ERAS)
async def test_no_bit_of_a_plan_can_be_changed(hub: McpHub, era: str) -> None:
    async with wire(hub.url, era, capabilities={}) as client:
        await write(client, "a.txt")
        digest = error_of(await call(client, DELETE, GONE))["details"]["plan_digest"]
        token = b32decode(digest.removeprefix("plan_").upper())
        for at in range(len(token)):
            changed = bytearray(token)
            changed[at] ^= 1
            sent = "plan_" + b32encode(bytes(changed)).decode().lower()
            refused = error_of(await call(client, DELETE, {**GONE, "toolhub_plan": sent}))
            assert refused["kind"] == "PLAN_REQUIRED"
            assert refused["details"]["differs"] in (["call"], ["forged"]), at
        unfit: list[Any] = [digest[:-1], digest + "a", digest.removeprefix("plan_"), f"plan_{digest}", ["x"], 7]
        for each in unfit:
            refused = error_of(await call(client, DELETE, {**GONE, "toolhub_plan": each}))
            assert refused["kind"] == "PLAN_REQUIRED", each
        assert await exists(client, "a.txt")


@pytest.mark.promise("mcpserver.plans")
async def test_a_plan_does_not_replace_an_approval(tmp_path: Path) -> None:
    rules = "rules: [{id: seen, tools: [core/fs.deletePath], effect: REQUIRE_APPROVAL}]\n"
    async with (
        mcp_hub(tmp_path, policy=OPEN_POLICY + rules) as hub,
        wire(hub.url, NEWER, capabilities={}) as client,
    ):
        await write(client, "a.txt")
        plan = await hub.grpc.plan("core/fs.deletePath", GONE, request_id="shared")
        assert plan.plan_digest, plan
        for arguments, meta in (
            ({**GONE, "toolhub_plan": plan.plan_digest}, SHARED),
            (GONE, {**SHARED, "toolhub/plan_digest": plan.plan_digest}),
        ):
            refused = error_of(await call(client, DELETE, arguments, _meta=meta))
            assert refused["kind"] == "APPROVAL_REQUIRED"
        assert await exists(client, "a.txt")
