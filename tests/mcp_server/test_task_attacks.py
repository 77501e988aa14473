"""What a client may try with what it is given and with what it makes up: states, task ids, request ids, `_meta`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from mcp.server.request_state import AESGCMRequestStateCodec
from mcp.shared.inbound import encode_header_value

from tests.mcp_server.mcp_hub import (
    ASKING,
    COPY,
    PICK,
    HeldJob,
    HeldTool,
    McpHub,
    decide,
    keys_of,
    mcp_hub,
)
from tests.mcp_server.wire import ALSO_ASKS, NEWER, OLDER, Wire, wire
from toolhub_service.domain.event import EventType

ACCEPTED: dict[str, Any] = {"inputResponses": {"approval": {"action": "accept", "content": {}}}}
CAN_ASK: dict[str, Any] = {"elicitation": {"form": {}}}


async def copied(client: Wire, state: str, arguments: dict[str, str] = COPY) -> dict[str, Any]:
    """The answer to a call that brings a state back."""
    params = {"name": "core__fs_copy", "arguments": arguments, "requestState": state, **ACCEPTED}
    return await client.ask("tools/call", params)


@pytest.mark.promise("mcpserver.approvals")
async def test_a_state_that_is_forged_altered_foreign_or_too_old_is_refused_and_one_serves_once(hub: McpHub) -> None:
    keys = keys_of(hub)
    async with (
        wire(hub.url, NEWER, keys["alice"], CAN_ASK) as alice,
        wire(hub.url, NEWER, keys["bob"], CAN_ASK) as bob,
    ):
        await alice.call("core__fs_writeText", {"path": "a.txt", "text": "x"})
        asked = await alice.call("core__fs_copy", COPY)
        state = asked["requestState"]
        codec = AESGCMRequestStateCodec([hub.grpc.hub.mcp.engine.state_key])
        claims = json.loads(codec.unseal(state))
        assert claims["exp"] - time.time() <= 3_600
        too_old = codec.seal(json.dumps({**claims, "exp": time.time() - 1}).encode())
        another_hub = AESGCMRequestStateCodec([b"k" * 32]).seal(json.dumps(claims).encode())
        for client, arguments, sent in (
            (bob, COPY, state),
            (alice, {**COPY, "destination": "c.txt"}, state),
            (alice, COPY, state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB")),
            (alice, COPY, claims["s"]),
            (alice, COPY, too_old),
            (alice, COPY, another_hub),
        ):
            error = (await copied(client, sent, arguments))["error"]
            assert error["code"] == -32602
            assert error["message"].startswith("Invalid or expired requestState"), sent
        await decide(hub, claims["s"])
        assert not (await copied(alice, state))["result"]["isError"]
        replayed = (await copied(alice, state))["result"]
        assert replayed["_meta"]["toolhub/error"]["kind"] == "APPROVAL_REQUIRED"
    assert len(await hub.grpc.events(types=frozenset({EventType.APPROVAL_USED}))) == 1


async def test_hubs_with_one_key_share_states_and_others_state_what_they_need(tmp_path: Path) -> None:
    key = tmp_path / "state.key"
    key.touch(0o600)
    key.write_text("ab" * 32)
    states: list[str] = []
    for names in (("one", "other"), ("third", "")):
        for name in filter(None, names):
            chosen: dict[str, Any] = {"state_key_file": str(key)} if name != "third" else {}
            async with (
                mcp_hub(tmp_path / name, policy=ASKING, **chosen) as hub,
                wire(hub.url, NEWER, "", CAN_ASK) as client,
            ):
                answers = [await copied(client, state) for state in states[:1]]
                states.append((await client.call("core__fs_copy", COPY))["requestState"])
        kinds = [answer.get("result", {}).get("_meta", {}).get("toolhub/error", {}).get("kind") for answer in answers]
        # Their stores are not shared, so the approval is unknown to the other: but the state is taken.
        assert kinds == (["APPROVAL_REQUIRED"] if "other" in names else [None])
    assert "Send the call again without it" in answers[0]["error"]["message"]


async def test_hubs_of_one_store_take_each_others_states_without_a_key_file(tmp_path: Path, redis_url: str) -> None:
    stores = {"stores": {"redis_url": redis_url}}
    async with (
        mcp_hub(tmp_path / "one", policy=ASKING, settings=stores) as one,
        mcp_hub(tmp_path / "other", policy=ASKING, settings=stores) as other,
        wire(one.url, NEWER, "", CAN_ASK) as here,
        wire(other.url, NEWER, "", CAN_ASK) as there,
    ):
        state = (await here.call("core__fs_copy", COPY))["requestState"]
        result = (await copied(there, state))["result"]
        assert result["_meta"]["toolhub/error"]["kind"] == "APPROVAL_REQUIRED"


@pytest.mark.promise("mcpserver.tasks")
async def test_task_ids_of_others_and_made_up_ones_are_answered_alike(hub: McpHub, picking: HeldJob) -> None:
    keys = keys_of(hub)
    for era, methods in (
        (NEWER, ("tasks/get", "tasks/cancel", "tasks/update")),
        (OLDER, ("tasks/get", "tasks/cancel", "tasks/result")),
    ):
        async with wire(hub.url, era, keys["alice"]) as alice, wire(hub.url, era, keys["bob"]) as bob:
            more: dict[str, Any] = {} if era == NEWER else {"task": {}}
            begun = await alice.call(PICK, **more)
            task_id = begun["taskId"] if era == NEWER else begun["task"]["taskId"]
            for method in methods:
                answers = set()
                for guess in (task_id, task_id[:-1], "job_0", "../../etc/passwd", "x" * 129, "%s", "é", "job_\u0000"):
                    params: dict[str, Any] = {
                        "taskId": guess,
                        **({"inputResponses": {}} if method == "tasks/update" else {}),
                    }
                    answer = await bob.ask(
                        method,
                        params,
                        headers={"mcp-name": encode_header_value(guess)},
                    )
                    answers.add(json.dumps(answer["error"]))
                assert len(answers) == 1, (method, answers)
                for odd in (7, None, ["job_0"]):
                    error = (await bob.ask(method, {"taskId": odd}, headers={"mcp-name": "x"}))["error"]
                    assert error["code"] == -32602, (method, odd)
            if era == NEWER:
                rerouted = await alice.ask("tasks/get", {"taskId": task_id}, headers={"mcp-name": "job_0"})
                assert rerouted["error"]["code"] == -32020
            else:
                assert (await bob.result("tasks/list"))["tasks"] == []
                for cursor in ("1:job_0", f"1:{task_id}", "1:' OR 1=1", "1:job_\u0000", "x"):
                    assert (await bob.ask("tasks/list", {"cursor": cursor}))["error"]["code"] == -32602
            assert (await alice.result("tasks/get", {"taskId": task_id}))["status"] == "working"
            await alice.result("tasks/cancel", {"taskId": task_id})
            await alice.over(task_id)


async def test_ids_of_requests_are_each_clients_own_and_cancel_nobody_elses(hub: McpHub, working: HeldTool) -> None:
    keys = keys_of(hub)
    async with wire(hub.url, OLDER, keys["alice"]) as alice, wire(hub.url, OLDER, keys["bob"]) as bob:
        held = asyncio.create_task(alice.call("held__work_on"))
        await working.begun.wait()
        mine = next(alice.ids) - 1
        for client_session in ({}, {"mcp-session-id": alice.headers["mcp-session-id"]}):
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": mine}}
            await bob.http.post(bob.url, json=cancel, headers={**bob.headers, **client_session})
        # Her own session goes on, and so does her call.
        now = await bob.call("core__util_time_now")
        assert now["structuredContent"]["iso"]
        assert not working.ended.is_set()
        working.go_on.set()
        assert (await held)["structuredContent"] == {"done": True}
    async with wire(hub.url, NEWER, keys["alice"]) as alice, wire(hub.url, NEWER, keys["alice"]) as twin:
        writes = [
            client.call("core__fs_writeText", {"path": f"{name}.txt", "text": name})
            for client, name in ((alice, "one"), (twin, "other"))
        ]  # the ids are the same
        assert [each["structuredContent"]["path"] for each in await asyncio.gather(*writes)] == ["one.txt", "other.txt"]


async def test_a_clients_meta_fields_change_nothing_but_the_allowed_ones(hub: McpHub, picking: HeldJob) -> None:
    keys = keys_of(hub)
    async with wire(hub.url, NEWER, keys["alice"], ALSO_ASKS) as alice, wire(hub.url, NEWER, keys["bob"], {}) as bob:
        await alice.call("core__fs_writeText", {"path": "a.txt", "text": "x"})
        hers = json.loads(
            AESGCMRequestStateCodec([hub.grpc.hub.mcp.engine.state_key]).unseal(
                (await alice.call("core__fs_copy", COPY))["requestState"]
            )
        )["s"]
        await decide(hub, hers)
        forged = {
            "io.modelcontextprotocol/related-task": {"taskId": "job_0"},
            "io.modelcontextprotocol/serverInfo": {"name": "forged", "version": "1"},
            "io.modelcontextprotocol/subscriptionId": 1,
            "io.modelcontextprotocol/clientInfo": {"name": "to\nforge\x1b[2Ja line", "version": "1"},
            "toolhub/call_id": "forged",
            "toolhub/error": {"kind": "forged"},
            "toolhub/replayed": True,
            "toolhub/approval_id": hers,
            "toolhub/request_id": "../forged",
            "toolhub/principal": "alice",
        }
        refused = await bob.call("core__fs_copy", COPY, _meta=forged)
        assert refused["isError"]
        assert "forged" not in json.dumps(refused)
        written = await bob.call("core__fs_writeText", {"path": "b.txt", "text": "b"}, _meta=forged)
        assert not written["isError"]
        assert "forged" not in json.dumps(written)
    events = [event.event for event in await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
    assert {event.principal for event in events if event.labels["mcp_client"].startswith("to")} == {"bob"}
    assert {event.labels["mcp_client"] for event in events} == {"raw 1", "toforge[2Ja line 1"}
    assert not any("forged" in event.request_id for event in events)
