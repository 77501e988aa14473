"""Calls over MCP that need a plan: the user is asked where the client can ask, else the model commits it by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, ElicitResult, ErrorData

from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import ERAS, WITH_KEYS, McpHub, keys_of, mcp_hub
from toolhub_service.domain.event import EventType

DELETE = "core__fs_deletePath"
GONE = {"path": "a.txt", "confirm": True}
NO_DESTRUCTION = OPEN_POLICY.replace(", danger:destructive", "")


class User:
    """Answers what the client asks, in turn; keeps the messages."""

    def __init__(self, *actions: Any) -> None:
        self.actions = list(actions)
        self.asked: list[str] = []

    async def __call__(self, _: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        action = self.actions.pop(0)
        return ElicitResult(action=action, content={} if action == "accept" else None)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, settings=WITH_KEYS) as opened:
        yield opened


@asynccontextmanager
async def with_file(hub: McpHub, era: str, user: User | None = None, key: str = "") -> AsyncIterator[Any]:
    async with hub.client(era, key, **({"elicitation_callback": user} if user else {})) as client:
        written = await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x", "overwrite": True})
        assert not written.is_error, written.content
        yield client


def error_of(answer: Any) -> dict[str, Any]:
    assert answer.is_error, answer.content
    return dict(answer.meta["toolhub/error"])


async def exists(client: Any) -> bool:
    return not (await client.call_tool("core__fs_readText", {"path": "a.txt"})).is_error


@pytest.mark.promise("mcpserver.plans")
@pytest.mark.parametrize("era", ERAS)
async def test_a_model_is_shown_the_plan_and_commits_it_by_the_same_call(hub: McpHub, era: str) -> None:
    async with with_file(hub, era) as client:
        refused = await client.call_tool(DELETE, GONE)
        error = error_of(refused)
        digest = error["details"]["plan_digest"]
        assert error["kind"] == "PLAN_REQUIRED"
        assert error["details"]["effects"] == ['Delete "a.txt": 1 file, 1 byte. This cannot be undone.']
        text = refused.content[0].text
        assert 'Delete "a.txt"' in text
        assert f'toolhub_plan: "{digest}"' in text
        assert DELETE in text
        assert "DRY_RUN" not in f"{text}{error}"
        assert await exists(client)
        done = await client.call_tool(DELETE, {**GONE, "toolhub_plan": digest})
        assert not done.is_error, done.content
        assert not await exists(client)


@pytest.mark.promise("mcpserver.plans")
@pytest.mark.parametrize("era", ERAS)
async def test_the_user_is_shown_the_plan_and_the_model_does_not_get_it(hub: McpHub, era: str) -> None:
    user = User("decline", "cancel", "accept")
    async with with_file(hub, era, user) as client:
        for _ in range(2):
            refused = await client.call_tool(DELETE, GONE)
            error = error_of(refused)
            assert (error["kind"], error["details"]) == ("PLAN_REQUIRED", {"declined": True})
            assert "plan_" not in str(refused)
            assert await exists(client)
        done = await client.call_tool(DELETE, GONE)
        assert not done.is_error, done.content
        assert not await exists(client)
    assert len(user.asked) == 3
    assert all(DELETE in asked and 'Delete "a.txt": 1 file, 1 byte.' in asked for asked in user.asked)
    assert all('{"confirm":true,"path":"a.txt"}' in asked for asked in user.asked)


@pytest.mark.promise("mcpserver.plans")
@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_is_of_one_caller_one_workspace_and_these_arguments(hub: McpHub, era: str) -> None:
    keys = keys_of(hub)
    async with with_file(hub, era, key=keys["alice"]) as client:
        await client.call_tool("core__fs_writeText", {"path": "b.txt", "text": "x"})
        digest = error_of(await client.call_tool(DELETE, GONE))["details"]["plan_digest"]
        sent = {"toolhub_plan": digest}
        other = error_of(await client.call_tool(DELETE, {**GONE, "path": "b.txt", **sent}))
        assert other["details"]["differs"] == ["call"]
        assert 'Delete "b.txt"' in other["message"]
        elsewhere = await client.call_tool(DELETE, {**GONE, **sent}, meta={"toolhub/request_id": "other"})
        assert error_of(elsewhere)["kind"] == "NOT_FOUND"  # its dry run says why it cannot be
        async with with_file(hub, era, key=keys["bob"]) as another:
            assert error_of(await another.call_tool(DELETE, {**GONE, **sent}))["details"]["differs"] == ["call"]
            assert await exists(another)
        for made_up in ("none", "plan_aaaa", "plan_" + "a" * 40, "plan_é"):
            invented = error_of(await client.call_tool(DELETE, {**GONE, "toolhub_plan": made_up}))
            assert invented["details"]["differs"] in (["forged"], ["call"]), made_up
            assert invented["details"]["plan_digest"] != made_up
        assert await exists(client)


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_of_what_has_changed_since_is_answered_with_the_new_one(hub: McpHub, era: str) -> None:
    async with with_file(hub, era) as client:
        digest = error_of(await client.call_tool(DELETE, GONE))["details"]["plan_digest"]
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "longer", "overwrite": True})
        stale = error_of(await client.call_tool(DELETE, {**GONE, "toolhub_plan": digest}))
        assert stale["details"]["differs"] == ["state"]
        assert "6 bytes" in stale["message"]
        done = await client.call_tool(DELETE, {**GONE, "toolhub_plan": stale["details"]["plan_digest"]})
        assert not done.is_error


@pytest.mark.parametrize("era", ERAS)
async def test_what_changes_while_the_user_reads_is_not_done(hub: McpHub, era: str) -> None:
    changes: list[Any] = []

    class Slow(User):
        async def __call__(self, context: Any, params: Any) -> ElicitResult:
            if changes:
                await changes.pop()("core__fs_writeText", {"path": "a.txt", "text": "ab", "overwrite": True})
            return await super().__call__(context, params)

    user, session = Slow("accept", "accept"), {"toolhub/request_id": "shared"}
    async with with_file(hub, era, user) as client, hub.client(era) as beside:
        changes.append(_within(beside.call_tool, session))
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"}, meta=session)
        answer = await client.call_tool(DELETE, GONE, meta=session)
        if era == ERAS[0]:  # the newer protocol asks for the new plan within the call
            error = error_of(answer)
            assert "changed since the user agreed" in error["message"]
            assert "plan_digest" not in error["details"]
            answer = await client.call_tool(DELETE, GONE, meta=session)
        assert not answer.is_error
    assert ["1 byte." in user.asked[0], "2 bytes" in user.asked[1]] == [True, True]


@pytest.mark.parametrize("era", ERAS)
async def test_a_job_whose_plan_changes_while_the_user_reads_is_not_started(hub: McpHub, era: str) -> None:
    changes: list[Any] = []

    class Slow(User):
        async def __call__(self, context: Any, params: Any) -> ElicitResult:
            if changes:
                await changes.pop()("core__fs_writeText", {"path": "a.txt", "text": "ab", "overwrite": True})
            return await super().__call__(context, params)

    user, session = Slow("accept", "accept"), {"toolhub/request_id": "shared"}
    async with with_file(hub, era, user) as client, hub.client(era) as beside:
        changes.append(_within(beside.call_tool, session))
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"}, meta=session)
        started = await client.call_tool("job_start", {"name": DELETE, "arguments": GONE}, meta=session)
        if era == ERAS[0]:  # the newer protocol asks for the new plan within the call
            error = error_of(started)
            assert "changed since the user agreed" in error["message"]
            assert "plan_" not in str(started)
        else:
            assert not started.is_error
    assert ["1 byte." in user.asked[0], len(user.asked)] == [True, 1 if era == ERAS[0] else 2]


@pytest.mark.parametrize("era", ERAS)
async def test_the_user_is_shown_the_beginning_of_large_arguments(tmp_path: Path, era: str) -> None:
    policy = OPEN_POLICY + "rules: [{id: plans, tools: [core/fs.writeText], effect: REQUIRE_PLAN}]\n"
    user = User("accept")
    async with mcp_hub(tmp_path, policy=policy) as hub, hub.client(era, elicitation_callback=user) as client:
        written = await client.call_tool("core__fs_writeText", {"path": "large.txt", "text": "x" * 100_000})
        assert not written.is_error, written.content
    (asked,) = user.asked
    assert '{"path":"large.txt","text":"xxx' in asked
    assert "more characters]" in asked
    assert len(asked) < 2_000


@pytest.mark.parametrize(("code", "is_told"), [(INTERNAL_ERROR, False), (METHOD_NOT_FOUND, True)])
async def test_only_of_a_client_that_cannot_ask_the_model_gets_the_plan(hub: McpHub, code: int, is_told: bool) -> None:
    async def fail(_: Any, params: Any) -> ErrorData:
        return ErrorData(code=code, message="no window")

    async with hub.client(ERAS[0], elicitation_callback=fail) as client:
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"})
        details = error_of(await client.call_tool(DELETE, GONE))["details"]
        assert ("plan_digest" in details, details.get("declined", False)) == (is_told, not is_told)
        assert await exists(client)


def _within(call: Any, session: dict[str, str]) -> Any:
    async def made(name: str, arguments: Any) -> Any:
        return await call(name, arguments, meta=session)

    return made


@pytest.mark.parametrize("shown", ["full", "search"])
async def test_tools_that_may_need_a_plan_describe_the_argument_for_it(tmp_path: Path, shown: str) -> None:
    async with mcp_hub(tmp_path, shown=shown) as hub, hub.client(ERAS[1]) as client:
        if shown == "full":
            tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            described, plain = tools[DELETE], tools["core__fs_readText"]
        else:
            found = [await client.call_tool("describe_tool", {"name": name}) for name in (DELETE, "core__fs_readText")]
            described, plain = (each.structured_content["inputSchema"] for each in found)
        assert "make the same call again with the plan" in described["properties"]["toolhub_plan"]["description"]
        assert "toolhub_plan" not in described.get("required", [])
        assert "toolhub_plan" not in plain["properties"]


@pytest.mark.parametrize("tool", ["call_tool", "job_start"])
async def test_the_hubs_own_tools_take_the_plan_with_the_arguments(hub: McpHub, tool: str) -> None:
    async with with_file(hub, ERAS[1]) as client:
        error = error_of(await client.call_tool(tool, {"name": DELETE, "arguments": GONE}))
        sent = {**GONE, "toolhub_plan": error["details"]["plan_digest"]}
        done = await client.call_tool(tool, {"name": DELETE, "arguments": sent})
        assert not done.is_error, done.content
        if tool == "job_start":
            await client.call_tool("job_result", {"job_id": done.structured_content["job_id"]})
        assert not await exists(client)


@pytest.mark.parametrize("era", ERAS)
async def test_the_user_is_asked_about_the_plan_of_a_job(hub: McpHub, era: str) -> None:
    user = User("decline", "accept")
    async with with_file(hub, era, user) as client:
        refused = await client.call_tool("job_start", {"name": DELETE, "arguments": GONE})
        assert error_of(refused)["details"] == {"declined": True}
        done = await client.call_tool("job_start", {"name": DELETE, "arguments": GONE})
        assert not done.is_error, done.content
        await client.call_tool("job_result", {"job_id": done.structured_content["job_id"]})
        assert not await exists(client)
    assert len(user.asked) == 2


async def test_a_program_commits_a_plan_by_meta(hub: McpHub) -> None:
    async with with_file(hub, ERAS[1]) as client:
        digest = error_of(await client.call_tool(DELETE, GONE))["details"]["plan_digest"]
        done = await client.call_tool(DELETE, GONE, meta={"toolhub/plan_digest": digest})
        assert not done.is_error


async def test_a_call_that_policy_denies_shows_no_plan(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path, policy=NO_DESTRUCTION) as hub, with_file(hub, ERAS[1]) as client:
        refused = error_of(await client.call_tool(DELETE, {**GONE, "toolhub_plan": "plan_" + "a" * 40}))
        assert refused["kind"] == "TOOL_NOT_FOUND"
        assert await exists(client)


async def test_the_plan_is_a_dry_run_in_the_audit_log_and_committing_it_a_call_of_its_own(hub: McpHub) -> None:
    async with with_file(hub, ERAS[1]) as client:
        digest = error_of(await client.call_tool(DELETE, GONE))["details"]["plan_digest"]
        await client.call_tool(DELETE, {**GONE, "toolhub_plan": digest})
    events = [event.event for event in await hub.grpc.events() if event.event.tool == "core/fs.deletePath"]
    assert len({event.call_id for event in events}) == 3
    ends = [event.outcome for event in events if event.type is not EventType.TOOL_CALLED]
    assert ends == ["PLAN_REQUIRED", "planned", "ok"]
    assert "plan_" not in "".join(event.args_summary for event in events)
