"""What an upstream server asks in the middle of a call, put to the client that makes the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    EmptyResult,
    ListRootsResult,
    Root,
    SetLevelRequest,
    SetLevelRequestParams,
    TextContent,
)
from pydantic import FileUrl

from tests.conformance.everything import served
from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub
from tests.mcp_server.wire import ALSO_ASKS, KNOWS_TASKS, NEWER, OLDER, wire
from tests.rpc.real_servers import WITHIN_S, write_sources
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.event import EventType

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["mcp:*"]}]
roles: [{principals: ["*"], roles: [agent]}]
"""
RELAY = ["elicitation", "sampling", "roots", "logging"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpHub]:
    """Sources `old` and `new`, by the era that is spoken to them, and `mute`, which may ask nothing; and the same whose
    calls may last longer than clients wait."""
    home = tmp_path_factory.mktemp("hub")
    async with served() as url:
        sources: dict[str, Any] = {
            "old": {"url": url, "protocol": ERAS[0], "relay": RELAY},
            "new": {"url": url, "protocol": ERAS[1], "relay": RELAY},
            "mute": {"url": url, "protocol": ERAS[1]},
            "longold": {"url": url, "protocol": ERAS[0], "relay": ["elicitation"], "timeout_s": 300},
            "longnew": {"url": url, "protocol": ERAS[1], "relay": ["elicitation"], "timeout_s": 300},
            "longmute": {"url": url, "protocol": ERAS[1], "timeout_s": 300},
        }
        write_sources(home, sources)
        async with mcp_hub(home, policy=POLICY, settings={"auth": {"modes": ["api-key"]}}) as opened:
            assert await opened.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=WITHIN_S)
            yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(hub: McpHub) -> dict[str, str]:
    file = Paths(hub.grpc.hub.settings).key_file()
    made = {name: file.create(name) for name in ("alice", "bob")}
    reload_keys(hub.grpc.hub, file)
    return made


class ClientUser:
    """At a client: what was asked, and the answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lines: list[Any] = []

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        names = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={name: f"my {name}" for name in names})

    async def sample(self, context: Any, params: Any) -> CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        return CreateMessageResult(role="assistant", content=TextContent(text="words"), model="m")

    async def roots(self, context: Any) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/me"))])

    async def on_log(self, params: Any) -> None:
        self.lines.append((params.level, params.logger, params.data))

    @property
    def options(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
            "logging_callback": self.on_log,
        }


def _given(result: Any) -> Any:
    assert not result.is_error, result
    return json.loads(result.content[0].text)


@pytest.mark.promise("mcpserver.relay")
async def test_a_servers_question_is_answered_by_the_client_of_its_call_in_any_pair_of_eras(
    hub: McpHub, keys: dict[str, str]
) -> None:
    before = len(await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT})))
    for era in ERAS:
        for source in ("old", "new"):
            person = ClientUser()
            async with hub.client(era, keys["alice"], **person.options) as client:
                rounds = await client.call_tool(f"{source}__test_input_required_result_multi_round", {})
                assert [each["content"] for each in _given(rounds)] == [{"name": "my name"}, {"color": "my color"}]
                together = await client.call_tool(f"{source}__test_input_required_result_multiple_inputs", {})
                assert _given(together)[1]["content"]["text"] == "words"
                assert _given(together)[2]["roots"][0]["uri"] == "file:///home/me"
            tool = f"{source}/test_input_required_result_multi_round"
            assert person.asked[0] == f"{tool} asks: Step 1: What is your name?"
            assert person.asked[3:] == ["Generate a greeting", "roots"]
    events = await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))
    assert [event.event.outcome for event in events[before:]] == ["ok"] * 8


async def test_a_client_that_cannot_answer_and_a_source_that_may_not_ask_are_left_alone(
    hub: McpHub, keys: dict[str, str]
) -> None:
    for era in ERAS:
        person = ClientUser()
        async with hub.client(era, keys["alice"], **person.options) as client:
            for tool in ("test_input_required_result_sampling", "test_missing_capability"):
                refused = await client.call_tool(f"mute__{tool}", {})
                assert refused.is_error, refused
        assert person.asked == []
        async with hub.client(era, keys["alice"]) as client:
            for source in ("old", "new"):
                refused = await client.call_tool(f"{source}__test_input_required_result_elicitation", {})
                assert refused.is_error or "decline" in refused.content[0].text  # type: ignore[union-attr]
            with pytest.raises(MCPError) as needs:
                await client.call_tool("new__test_missing_capability", {})
            assert needs.value.error.code == -32021
            assert needs.value.error.data == {"requiredCapabilities": {"sampling": {}}}


async def test_only_lines_of_a_log_that_a_client_wants_reach_it_under_their_sources_name(
    hub: McpHub, keys: dict[str, str]
) -> None:
    for source in ("old", "new"):
        person = ClientUser()
        async with hub.client(ERAS[0], keys["alice"], **person.options) as client:
            await client.call_tool(f"{source}__test_tool_with_logging", {})
            assert person.lines == []
            await client.session.send_request(SetLevelRequest(params=SetLevelRequestParams(level="info")), EmptyResult)
            await client.call_tool(f"{source}__test_tool_with_logging", {})
        assert [line[:2] for line in person.lines] == [("info", source)] * 3


async def test_a_waiting_call_is_joined_by_its_own_principal_alone_once_and_so_many_may_wait(
    hub: McpHub, keys: dict[str, str]
) -> None:
    name, person = "new__test_input_required_result_elicitation", ClientUser()
    async with (
        hub.client(ERAS[1], keys["alice"], **person.options) as alice,
        hub.client(ERAS[1], keys["bob"], **person.options) as bob,
    ):
        waits: Any = await alice.session.call_tool(name, {}, allow_input_required=True)
        assert waits.result_type == "input_required"
        answer: Any = {"user_name": ElicitResult(action="accept", content={"name": "Alice"})}
        again: dict[str, Any] = {
            "input_responses": answer,
            "request_state": waits.request_state,
            "allow_input_required": True,
        }
        with pytest.raises(MCPError):
            await bob.session.call_tool(name, {}, **again)
        assert _given(await alice.session.call_tool(name, {}, **again))[0]["content"] == {"name": "Alice"}
        with pytest.raises(MCPError, match="waits no longer"):
            await alice.session.call_tool(name, {}, **again)
        for _ in range(32):
            await bob.session.call_tool(name, {}, allow_input_required=True)
        with pytest.raises(MCPError, match="Too many calls wait"):
            await bob.session.call_tool(name, {}, allow_input_required=True)
        assert (await alice.session.call_tool(name, {}, allow_input_required=True)).result_type == "input_required"


async def test_a_request_of_an_older_server_is_put_to_nobody_while_several_calls_run_there(
    hub: McpHub, keys: dict[str, str]
) -> None:
    person, other = ClientUser(), ClientUser()
    async with (
        hub.client(ERAS[0], keys["alice"], **person.options) as alice,
        hub.client(ERAS[0], keys["bob"], **other.options) as bob,
    ):
        name = "old__test_input_required_result_sampling"
        both = await asyncio.gather(
            *(client.call_tool(name, {}) for client in (alice, bob, alice, bob)), return_exceptions=True
        )
    answered = [each for each in both if not getattr(each, "is_error", True)]
    assert len(answered) == len(person.asked) + len(other.asked) < 4


QUESTION = "test_input_required_result_elicitation"


@pytest.mark.parametrize("source", ["longold", "longnew"])
async def test_a_client_that_declares_tasks_and_elicitation_is_asked_in_a_call_that_may_last_long(
    hub: McpHub, keys: dict[str, str], source: str
) -> None:
    """Fails at 513ce725: the call became a task, and its server got "decline"."""
    async with wire(hub.url, NEWER, keys["alice"], ALSO_ASKS) as client:
        for tool, arguments in ((f"{source}__{QUESTION}", {}), ("call_tool", {"name": f"{source}__{QUESTION}"})):
            asks = await client.call(tool, arguments)
            assert asks["resultType"] == "input_required"
            ((key, request),) = asks["inputRequests"].items()
            assert request["method"] == "elicitation/create"
            answer = {key: {"action": "accept", "content": {"name": "Alice"}}}
            given = await client.call(tool, arguments, inputResponses=answer, requestState=asks["requestState"])
            assert "Alice" in given["content"][0]["text"]


async def test_a_call_is_a_task_where_its_source_may_not_ask_or_its_client_cannot_be_asked(
    hub: McpHub, keys: dict[str, str]
) -> None:
    submitted = frozenset({EventType.JOB_SUBMITTED})
    for source, capabilities in (("longmute", ALSO_ASKS), ("longnew", KNOWS_TASKS)):
        async with wire(hub.url, NEWER, keys["alice"], capabilities) as client:
            before = await hub.grpc.events(types=submitted)
            await client.call(f"{source}__test_simple_text")
            assert len(await hub.grpc.events(types=submitted)) == len(before) + 1


@pytest.mark.parametrize("source", ["old", "new", "longold", "longnew"])
async def test_a_question_that_nobody_can_be_asked_is_never_declined_for_the_user(
    hub: McpHub, keys: dict[str, str], source: str
) -> None:
    name = f"{source}__{QUESTION}"
    answers = []
    async with wire(hub.url, NEWER, keys["alice"], ALSO_ASKS) as newer, wire(hub.url, OLDER, keys["alice"]) as older:
        job = await newer.call("job_start", {"name": name})
        answers.append(await newer.call("job_result", {"job_id": job["structuredContent"]["job_id"], "wait_s": 30}))
        task = (await older.call(name, task={}))["task"]
        answers.append(await older.result("tasks/result", {"taskId": task["taskId"]}))
        answers.append(await older.call(name))  # this client declares nothing
    for answer in answers:
        text = answer["content"][0]["text"]
        assert answer["isError"], text
        assert "ask" in text
        assert "decline" not in text
