"""Long work as the protocol's tasks, by either protocol: the jobs that everybody else follows, and their owner's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.mcp_server.mcp_hub import (
    ASKING,
    COPY,
    PICK,
    HeldJob,
    HeldTool,
    McpHub,
    decide,
    mcp_hub,
)
from tests.mcp_server.wire import ALSO_ASKS, NEWER, OLDER, TASKS, wire
from toolhub_service.domain.approval import ApprovalFilter, ApprovalState

_PENDING = ApprovalFilter(states=frozenset({ApprovalState.PENDING}))


async def test_a_client_that_knows_the_extension_gets_a_task_and_follows_it_to_its_result(
    hub: McpHub, picking: HeldJob
) -> None:
    async with wire(hub.url, NEWER) as client:
        discovered = await client.result("server/discover")
        assert discovered["capabilities"]["extensions"][TASKS] == {}
        task = await client.call(PICK)
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert task["ttlMs"] > 0
        await picking.begun.wait()
        working = await client.until(task["taskId"], lambda task: "statusMessage" in task)
        assert (working["resultType"], working["statusMessage"]) == ("complete", "three (3 of 7 rows)")
        assert "result" not in working
        status = await client.call("job_status", {"job_id": task["taskId"]})  # a task is a job like any other
        assert status["structuredContent"]["state"] == "RUNNING"
        picking.go_on.set()
        over = await client.over(task["taskId"])
        assert over["result"]["structuredContent"] == {"done": True}
        plain = await client.call("held__work_on", {"more": 1})
        assert plain["isError"]  # refused: there is nothing to follow


async def test_a_client_that_does_not_declare_the_extension_is_given_no_task(hub: McpHub, picking: HeldJob) -> None:
    async with wire(hub.url, NEWER, capabilities={}) as client:
        begun = await client.call(PICK)
        assert begun["resultType"] == "complete"
        job_id = begun["structuredContent"]["job_id"]
        for method, params in (
            ("tasks/get", {"taskId": job_id}),
            ("tasks/cancel", {"taskId": job_id}),
            ("tasks/update", {"taskId": job_id, "inputResponses": {}}),
            ("subscriptions/listen", {"notifications": {"taskIds": [job_id]}}),
        ):
            error = (await client.ask(method, params))["error"]
            assert error["code"] == -32021, method
            assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        picking.go_on.set()


async def test_a_potentially_long_call_is_answered_at_once_where_it_is_short_and_else_with_a_task(
    hub: McpHub, working: HeldTool
) -> None:
    async with wire(hub.url, NEWER) as client:
        described = await client.call("describe_tool", {"name": "held__work_on"})
        assert "job_start starts it as a job" in described["structuredContent"]["description"]
        task = await client.call("held__work_on")
        assert task["resultType"] == "task"
        await client.result("tasks/cancel", {"taskId": task["taskId"]})
        over = await client.over(task["taskId"])
        assert over["status"] == "cancelled"
        assert "result" not in over
        assert working.ended.is_set()
        working.go_on.set()
        soon = await client.call("held__work_on")
        assert soon["structuredContent"] == {"done": True}


async def test_tasks_of_the_older_era_are_asked_for_and_their_result_waits(hub: McpHub, picking: HeldJob) -> None:
    async with wire(hub.url, OLDER) as client:
        assert client.capabilities["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        support = {
            tool["name"]: tool.get("execution", {}).get("taskSupport")
            for tool in (await client.result("tools/list"))["tools"]
        }
        assert (support[PICK], support["core__fs_readText"], support["job_start"]) == ("optional", "optional", None)
        begun = (await client.call(PICK, task={"ttl": 60_000}))["task"]
        assert begun["status"] == "working"
        asked = {"taskId": begun["taskId"]}
        result = asyncio.create_task(client.result("tasks/result", asked))
        await picking.begun.wait()
        assert (await client.result("tasks/get", asked))["status"] == "working"
        listed = await client.result("tasks/list")
        assert [task["taskId"] for task in listed["tasks"]] == [begun["taskId"]]
        picking.go_on.set()
        over = await result
        assert over["structuredContent"] == {"done": True}
        assert over["_meta"]["io.modelcontextprotocol/related-task"] == asked
        assert (await client.result("tasks/get", asked))["status"] == "completed"
        again = await client.ask("tasks/cancel", asked)
        assert again["error"]["code"] == -32602
        wrong = (await client.call("core__fs_readText", {"pth": 1}, task={}))["task"]
        failed = await client.result("tasks/get", {"taskId": wrong["taskId"]})
        assert failed["status"] == "failed"
        assert failed["statusMessage"].startswith("INPUT_SCHEMA_INVALID: ")
        assert (await client.ask("tools/call", {"name": "job_start", "task": {}}))["error"]["code"] == -32601
        assert (await client.ask("tasks/update", {**asked, "inputResponses": {}}))["error"]["code"] == -32601


@pytest.mark.promise("mcpserver.tasks")
async def test_a_task_outlives_the_hub_that_began_it(tmp_path: Path, picking: HeldJob) -> None:
    async with mcp_hub(tmp_path, policy=ASKING, tools=[picking]) as hub, wire(hub.url, NEWER) as client:
        task_id = (await client.call(PICK))["taskId"]
        waits = (await client.call("core__fs_copy", COPY))["taskId"]
        await picking.begun.wait()
    picking.go_on.set()
    async with mcp_hub(tmp_path, policy=ASKING, tools=[picking]) as hub, wire(hub.url, NEWER) as client:
        assert (await client.over(task_id))["result"]["structuredContent"] == {"done": True}
        waiting = await client.result("tasks/get", {"taskId": waits})
        assert waiting["status"] == "working"
        assert "toolhub approvals approve apr_" in waiting["statusMessage"]


@pytest.mark.promise("mcpserver.approvals")
async def test_a_call_that_needs_a_person_waits_as_a_task_and_goes_on_by_itself(hub: McpHub) -> None:
    async with wire(hub.url, NEWER) as client:
        await client.call("core__fs_writeText", {"path": "a.txt", "text": "x"})
        task = await client.call("core__fs_copy", COPY)
        assert (task["resultType"], task["status"]) == ("task", "working")
        approval_id = task["statusMessage"].split("toolhub approvals approve ")[1].split(".")[0]
        client.capabilities = ALSO_ASKS  # a client may be able to ask at one time and not at another
        first = await client.result("tasks/get", {"taskId": task["taskId"]})
        assert first["status"] == "input_required"
        ((key, question),) = first["inputRequests"].items()
        assert question["params"]["mode"] == "form"
        for answers in ({"other": {"action": "decline"}}, {key: {"action": "accept", "content": {}}}):
            update = {"taskId": task["taskId"], "inputResponses": answers}
            assert (await client.result("tasks/update", update))["resultType"] == "complete"
        waiting = await client.result("tasks/get", {"taskId": task["taskId"]})
        assert waiting["status"] == "working"  # to accept is not to approve, and nothing is asked twice
        await decide(hub, approval_id)
        over = await client.over(task["taskId"])
        assert not over["result"]["isError"], over
    _, pending = await hub.grpc.hub.long_work.stores.approvals.page(_PENDING, after=None, limit=1)
    assert pending == 0
