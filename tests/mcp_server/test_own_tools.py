"""What MCP clients get beside the tools: search, jobs, approvals, artifacts, news of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from tests.mcp_server.mcp_hub import (
    ASKING,
    COPY,
    ERAS,
    WITH_KEYS,
    HeldTool,
    McpHub,
    decide,
    keys_of,
    mcp_hub,
)
from tests.mcp_server.test_admission import HEADERS
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput, spec_of


class TextTool(Tool["TextTool.In", "TextTool.Out"]):
    name = "held/thing.keep"
    description = "Keep a text as an artifact."
    annotations = Annotations(read_only=True)

    class In(ToolInput, frozen=True):
        text: str

    class Out(ToolOutput, frozen=True):
        size: int

    async def run(self, args: In, context: ToolContext) -> Out:
        async def chunks() -> AsyncIterator[bytes]:
            yield args.text.encode()

        await context.keep(chunks(), media_type="text/plain", name="kept.txt")
        return self.Out(size=len(args.text))


class LongOutput(Tool["LongOutput.In", "LongOutput.Out"]):
    name = "held/list.long"
    description = "Give many numbers."
    annotations = Annotations(read_only=True)

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        numbers: list[int]

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(numbers=list(range(90_000)))


class AddedTool(TextTool):
    name = "held/thing.new"


ADDED_TOOL: Tool[Any, Any, Any] = AddedTool()


@pytest.fixture
async def hub(tmp_path: Path, working: HeldTool) -> AsyncIterator[McpHub]:
    async with mcp_hub(
        tmp_path, policy=ASKING, settings=WITH_KEYS, tools=[working, TextTool(), LongOutput()]
    ) as opened:
        yield opened


def structured(result: Any) -> Any:
    assert not result.is_error, result
    assert result.structured_content == json.loads(result.content[0].text)
    return result.structured_content


async def test_a_search_replaces_a_long_list_and_states_whether_it_is_complete(tmp_path: Path) -> None:
    async with (
        mcp_hub(tmp_path, policy=ASKING, full_max_tokens=1_000) as hub,
        hub.client(ERAS[1]) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[:3] == ["search_tools", "describe_tool", "call_tool"]
        assert len(names) == 8
        found = structured(await client.call_tool("search_tools", {"query": "read a text file", "limit": 2}))
        assert found["tools"][0]["name"] == "core__fs_readText"
        assert (len(found["tools"]), found["complete"]) == (2, False)
        assert found["more"] == found["total"] - 2
        every = structured(await client.call_tool("search_tools", {"query": "", "limit": 50}))
        assert every["complete"]
        assert "core__http_get" not in {tool["name"] for tool in every["tools"]}  # it needs what nobody was granted
        described = structured(await client.call_tool("describe_tool", {"name": "core__fs_readText"}))
        assert "path" in described["inputSchema"]["properties"]
        called = structured(await client.call_tool("call_tool", {"name": "core__util_time_now"}))
        assert called["iso"]
        for name, arguments, kind in (
            ("call_tool", {"name": "core__http_get", "arguments": {"url": "http://a"}}, "TOOL_NOT_FOUND"),
            ("describe_tool", {"name": "core__http_get"}, "TOOL_NOT_FOUND"),
            ("describe_tool", {"nam": "x"}, "INPUT_SCHEMA_INVALID"),
            ("search_tools", {"query": "x", "limit": 1_000}, "INPUT_SCHEMA_INVALID"),
            ("job_status", {"job_id": "job_of_another"}, "NOT_FOUND"),
        ):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert refused.meta is not None
            assert refused.meta["toolhub/error"]["kind"] == kind


async def test_a_job_is_started_followed_and_cancelled_by_its_owner_alone(hub: McpHub, working: HeldTool) -> None:
    keys = keys_of(hub)
    async with hub.client(ERAS[1], keys["alice"]) as alice, hub.client(ERAS[0], keys["bob"]) as bob:
        started = structured(await alice.call_tool("job_start", {"name": "held__work_on"}))
        assert not started["is_over"]
        job = {"job_id": started["job_id"]}
        await working.begun.wait()
        not_yet = structured(await alice.call_tool("job_result", {**job, "wait_s": 0}))
        assert not_yet["note"] == "It is not over. Ask again."
        for name in ("job_status", "job_result", "job_cancel"):
            assert (await bob.call_tool(name, job)).is_error, name
        working.go_on.set()
        assert structured(await alice.call_tool("job_result", {**job, "wait_s": 50})) == {"done": True}
        working.go_on.clear()
        second = {"job_id": structured(await alice.call_tool("job_start", {"name": "held__work_on"}))["job_id"]}
        structured(await alice.call_tool("job_cancel", {**second, "reason": "enough"}))
        over = structured(await alice.call_tool("job_status", {**second, "wait_s": 50}))
        assert (over["state"], over["is_over"]) == ("CANCELLED", True)
        refused = await alice.call_tool("job_start", {"name": "core__fs_readText", "arguments": {"pth": 1}})
        assert refused.is_error


@pytest.mark.promise("mcpserver.approvals")
@pytest.mark.parametrize("era", ERAS)
async def test_an_approval_is_refused_with_its_id_until_the_same_call_comes_again(hub: McpHub, era: str) -> None:
    async with hub.client(era) as client:
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"})
        refused = await client.call_tool("core__fs_copy", COPY)
        assert refused.is_error
        assert refused.meta is not None
        error = refused.meta["toolhub/error"]
        assert error["kind"] == "APPROVAL_REQUIRED"
        await decide(hub, error["details"]["approval_id"])
        other = await client.call_tool("core__fs_copy", {**COPY, "destination": "c.txt"})
        assert other.is_error  # other arguments are another call
        assert not (await client.call_tool("core__fs_copy", COPY)).is_error
        again = await client.call_tool("core__fs_copy", {**COPY, "overwrite": True})
        assert again.is_error


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_can_ask_its_user_does_so_while_an_approver_decides(hub: McpHub, era: str) -> None:
    asked: list[str] = []

    async def ask(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        approval_id = next(word for word in params.message.split() if word.startswith("apr_")).strip(":")
        if len(asked) == 1:
            return ElicitResult(action="decline")
        await decide(hub, approval_id)
        return ElicitResult(action="accept", content={})

    async with hub.client(era, elicitation_callback=ask) as client:
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"})
        assert (await client.call_tool("core__fs_copy", COPY)).is_error
        assert not (await client.call_tool("core__fs_copy", COPY)).is_error
    assert len(asked) == 2
    used = await hub.grpc.events(types=frozenset({EventType.APPROVAL_USED}))
    assert len(used) == 1


@pytest.mark.promise("mcpserver.approvals")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_the_user_declines_is_not_made_although_it_has_been_approved(hub: McpHub, era: str) -> None:
    async def decline(_: Any, params: Any) -> ElicitResult:
        approval_id = next(word for word in params.message.split() if word.startswith("apr_")).strip(":")
        await decide(hub, approval_id)
        return ElicitResult(action="decline")

    async with hub.client(era, elicitation_callback=decline) as client:
        await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"})
        refused = await client.call_tool("core__fs_copy", COPY)
        assert refused.is_error
        assert "apr_" in refused.content[0].text  # type: ignore[union-attr]
        assert (await client.call_tool("core__fs_readText", {"path": "b.txt"})).is_error
        assert not (await client.call_tool("core__fs_copy", COPY)).is_error  # asked for once more: approved
    assert len(await hub.grpc.events(types=frozenset({EventType.APPROVAL_USED}))) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_can_open_links_is_shown_the_page_where_approvals_are_decided(
    tmp_path: Path, era: str
) -> None:
    asked: list[Any] = []

    async def ask(_: Any, params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="cancel")

    page = "https://ops.example/approvals/{approval_id}?from=mcp"
    async with (
        mcp_hub(tmp_path, policy=ASKING, approval_url=page) as hub,
        hub.client(era, elicitation_callback=ask) as client,
    ):
        refused = await client.call_tool("core__fs_copy", COPY)
        assert refused.is_error
        assert refused.meta is not None
    approval_id = refused.meta["toolhub/error"]["details"]["approval_id"]
    (params,) = asked
    assert (params.mode, params.url) == ("url", f"https://ops.example/approvals/{approval_id}?from=mcp")
    how = f"An approver decides with: toolhub approvals approve {approval_id}, or at {params.url}."
    assert how in params.message
    assert refused.content[-1].text == how  # type: ignore[union-attr]


@pytest.mark.promise("mcpserver.approvals")
async def test_the_state_of_a_question_is_no_ones_else_and_of_no_other_call(hub: McpHub) -> None:
    keys = keys_of(hub)
    async with httpx2.AsyncClient(headers=HEADERS) as http:

        async def call(who: str, arguments: dict[str, str], **more: Any) -> Any:
            meta = {
                "io.modelcontextprotocol/protocolVersion": ERAS[1],
                "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
            }
            params = {"name": "core__fs_copy", "arguments": arguments, "_meta": meta, **more}
            headers = {"authorization": f"Bearer {keys[who]}", "mcp-protocol-version": ERAS[1]}
            headers |= {"mcp-method": "tools/call", "mcp-name": "core__fs_copy"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = await http.post(hub.url, json=body, headers=headers)
            return answer.json()

        first = (await call("alice", COPY))["result"]
        assert first["resultType"] == "input_required"
        state = first["requestState"]
        assert "apr_" not in state
        accepted = {"inputResponses": {"approval": {"action": "accept", "content": {}}}}
        for who, arguments, sent in (
            ("bob", COPY, state),
            ("alice", {**COPY, "destination": "c.txt"}, state),
            ("alice", COPY, state[:-4] + "AAAA"),
            ("alice", COPY, "apr_1"),
        ):
            answer = await call(who, arguments, requestState=sent, **accepted)
            assert answer["error"]["message"].startswith("Invalid or expired requestState. Send"), (who, sent)
        undecided = await call("alice", COPY, requestState=state, **accepted)
        assert undecided["result"]["_meta"]["toolhub/error"]["kind"] == "APPROVAL_REQUIRED"


async def test_artifacts_are_links_that_their_owner_alone_can_read(hub: McpHub) -> None:
    keys = keys_of(hub)
    for era in ERAS:
        async with hub.client(era, keys["alice"]) as alice, hub.client(era, keys["bob"]) as bob:
            result = await alice.call_tool("held__thing_keep", {"text": f"kept in {era}"})
            link = result.content[1]
            assert link.type == "resource_link"
            assert (link.name, link.mime_type) == ("kept.txt", "text/plain")
            read = await alice.read_resource(str(link.uri))
            assert read.contents[0].text == f"kept in {era}"  # type: ignore[union-attr]
            assert str(link.uri) in {str(each.uri) for each in (await alice.list_resources()).resources}
            assert (await bob.list_resources()).resources == []
            refusals = []
            for uri in (str(link.uri), "toolhub://artifacts/art_none"):
                with pytest.raises(MCPError) as refused:
                    await bob.read_resource(uri)
                refusals.append((refused.value.code, refused.value.message))
            assert refusals[0] == refusals[1]
            for cursor in ("[" * 3_000, f'[{10**40}, "a"]', '[1, "\\u0000"]', "[true]", "-1", "x"):
                with pytest.raises(MCPError, match="The cursor is none of this list"):
                    await alice.list_resources(cursor=cursor)
            templates = (await alice.list_resource_templates()).resource_templates
            assert "toolhub://artifacts/{artifact_id}" in [each.uri_template for each in templates]


@pytest.mark.parametrize("era", ERAS)
async def test_a_result_that_was_cut_still_fits_its_schema_and_the_whole_is_a_resource(hub: McpHub, era: str) -> None:
    async with hub.client(era) as client:
        await client.list_tools()  # from here on the client holds results to their schemas
        result = await client.call_tool("held__list_long", {})
        assert result.meta is not None
        assert result.meta["toolhub/truncated"] is True
        assert result.structured_content is not None
        kept = result.structured_content["numbers"]
        assert kept == list(range(len(kept)))
        assert f"[cut: {90_000 - len(kept)} of 90000 items left out]" in result.content[0].text  # type: ignore[union-attr]
        whole = await client.read_resource(str(result.content[1].uri))  # type: ignore[union-attr]
        assert json.loads(whole.contents[0].text)["numbers"] == list(range(90_000))  # type: ignore[union-attr]
        started = structured(await client.call_tool("job_start", {"name": "held__list_long"}))
        asked = {"job_id": started["job_id"], "wait_s": 50}
        links = [(await client.call_tool("job_result", asked)).content[1].uri for _ in range(2)]  # type: ignore[union-attr]
        assert links[0] == links[1]  # kept once, however often it is asked for


async def test_clients_of_both_eras_are_notified_of_a_changed_catalog(hub: McpHub) -> None:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if "list_changed" in str(getattr(message, "method", getattr(getattr(message, "root", None), "method", ""))):
            changed.set()

    async with hub.client(ERAS[0], message_handler=on_message) as old, hub.client(ERAS[1]) as new:
        assert old.server_capabilities is not None
        assert old.server_capabilities.tools is not None
        assert old.server_capabilities.tools.list_changed
        async with new.listen(tools_list_changed=True) as changes, asyncio.timeout(60):
            catalog = hub.grpc.hub.toolbox.catalog
            while not changed.is_set():  # the standing stream of the older protocol opens beside its first requests
                catalog.register(spec_of(ADDED_TOOL, source="custom"), replace=True)
                await anext(aiter(changes))
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 1.0)
                if not changed.is_set():
                    catalog.unregister(ADDED_TOOL.name)
        assert "held__thing_new" in {tool.name for tool in (await new.list_tools()).tools}
