"""A model's call made by another connection than the one that exported the tool, and one that needs a plan."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.rpc.real_servers import sourced_hub
from tests.rpc.test_model_forms import VALIDATORS
from toolhub_client import Context, Hub, PolicyDenied, connect

LOCAL: Final = (("grpc.use_local_subchannel_pool", 1),)
DELETE: Final = "core__fs_deletePath"
GONE: Final = {"path": "a.txt", "confirm": True}
SHARED: Final = Context(request_id="shared")


def chat(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


def item(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(args)}


def block(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": "c", "name": name, "input": args}


def part(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


CALLS: Final[dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]]] = {
    "openai": chat,
    "openai_strict": item,
    "anthropic": block,
    "gemini": part,
}


def text_of(message: dict[str, Any]) -> str:
    response = message.get("functionResponse", {}).get("response", {})
    return str(message.get("content") or message.get("output") or response.get("output") or response.get("error"))


@asynccontextmanager
async def connected(hub: RunningHub) -> AsyncIterator[Hub]:
    async with connect(hub.address, options=LOCAL, context=SHARED) as client:
        yield client


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as running:
        yield running


async def write(client: Hub, text: str = "x") -> None:
    args = {"path": "a.txt", "text": text, "overwrite": True}
    (await client.invoke("core/fs.writeText", args, purpose="a test")).unwrap()


async def exists(client: Hub) -> bool:
    return (await client.invoke("core/fs.readText", {"path": "a.txt"})).ok


def facts(text: str) -> dict[str, Any]:
    return dict(json.loads(text.splitlines()[1]))


@pytest.mark.promise("registry.exported-names-resolve")
@pytest.mark.parametrize("form", CALLS)
async def test_an_exported_name_is_understood_from_a_connection_that_has_exported_nothing(
    hub: RunningHub, form: str
) -> None:
    async with connected(hub) as client:
        answer = await client.run_tool_call(CALLS[form]("core__util_hash_sha256Text", {"text": ""}))
        assert "e3b0c44298fc1c14" in text_of(answer)
        await client.run_tool_call(CALLS[form]("core__util_hash_sha256Text", {"text": ""}))
    assert {event.event.tool for event in await hub.events() if event.event.call_id} == {"core/util.hash.sha256Text"}


@pytest.mark.parametrize("form", ["gemini", "openai"])
async def test_null_for_what_is_left_out_is_understood_from_another_connection(hub: RunningHub, form: str) -> None:
    args = {"text": "abcdef", "maxChars": 3, "marker": None}
    async with connected(hub) as client:
        assert "ab…" in text_of(await client.run_tool_call(CALLS[form]("core__util_text_truncate", args)))
        strict = await client.run_tool_call(item("core__util_text_truncate", args), args_form="openai_strict")
        assert "ab…" in text_of(strict)


@pytest.mark.promise("registry.exported-names-resolve")
async def test_exported_names_are_understood_by_a_hub_that_was_started_later(tmp_path: Path) -> None:
    tools = [tool("a.b"), tool("a_b"), tool("1st"), tool("x" * 80)]
    async with serving(Script(pages=[tools])) as url:
        async with sourced_hub(tmp_path, {"acme": {"url": url}}) as hub, connected(hub) as client:
            _, names = await client.export("openai", names=["acme/*"])
            assert len(names) == len(tools)
        async with sourced_hub(tmp_path, {"acme": {"url": url}}) as hub, connected(hub) as client:
            for exported, name in names.items():
                answer = await client.invoke(exported, purpose="a test")
                assert answer.result.tool == name, exported
            assert (await client.invoke("acme__nothing")).error.kind == "TOOL_NOT_FOUND"  # type: ignore[union-attr]


async def test_a_tool_by_its_exported_name_is_checked_like_by_its_full_one(tmp_path: Path) -> None:
    policy = OPEN_POLICY + "rules: [{id: no-hashes, tools: [core/util.hash.sha256Text], effect: DENY}]\n"
    async with running_hub(tmp_path, policy=policy) as hub, connected(hub) as client:
        for name in ("core__util_hash_sha256Text", "core/util.hash.sha256Text"):
            denied = (await client.invoke(name, {"text": ""})).error
            assert denied is not None
            assert isinstance(denied, PolicyDenied)
            assert (denied.kind, denied.rule_id) == ("POLICY_DENIED", "no-hashes")


@pytest.mark.promise("clients.plans-by-models")
@pytest.mark.parametrize("form", CALLS)
async def test_a_model_is_shown_the_plan_and_commits_it_by_the_same_call(hub: RunningHub, form: Any) -> None:
    async with connected(hub) as client:
        await write(client)
        definitions, _ = await client.export(form, names=["core/fs.deletePath"])
        function = definitions[0].get("function", definitions[0])
        assert VALIDATORS[form](definitions[0]) == []
        schema = function.get("parameters") or function["input_schema"]
        assert "toolhub_plan" in schema["properties"]
        first = {**GONE, "recursive": None, "toolhub_plan": None} if form == "openai_strict" else GONE
        refused = await client.run_tool_call(CALLS[form](DELETE, first), purpose="a test")
        text = text_of(refused)
        assert text.startswith("PLAN_REQUIRED: core/fs.deletePath")
        assert 'Delete "a.txt": 1 file, 1 byte.' in text
        assert "DRY_RUN" not in text.rpartition("\n")[0]
        plan = facts(text)["plan_digest"]
        assert await exists(client)
        # By another connection, as after a restart of the program.
        async with connected(hub) as another:
            done = await another.run_tool_call(CALLS[form](DELETE, {**GONE, "toolhub_plan": plan}), purpose="a test")
            assert "deleted" in text_of(done), done
        assert not await exists(client)


@pytest.mark.promise("clients.plans-by-models")
async def test_a_model_gets_no_more_than_a_program_that_makes_the_dry_run_itself(hub: RunningHub) -> None:
    async with connected(hub) as client:
        await write(client)
        plan = facts(text_of(await client.run_tool_call(block(DELETE, GONE), purpose="a test")))["plan_digest"]
        other = await client.run_tool_call(block(DELETE, {"path": ".", "confirm": True, "toolhub_plan": plan}))
        assert "INVALID_INPUT" in text_of(other)  # no purpose: step 2 comes first
        elsewhere = await client.invoke(
            "core/fs.deletePath", GONE, purpose="a test", plan_digest=plan, context=Context(request_id="other")
        )
        assert elsewhere.error is not None
        assert elsewhere.error.details["differs"] == ["call"]
        await write(client, "more")
        stale = await client.invoke("core/fs.deletePath", GONE, purpose="a test", plan_digest=plan)
        assert stale.error is not None
        assert stale.error.details["differs"] == ["state"]
        assert await exists(client)


async def test_a_program_that_names_no_form_is_answered_in_its_own_words(hub: RunningHub) -> None:
    async with connected(hub) as client:
        await write(client)
        refused = (await client.invoke("core/fs.deletePath", GONE, purpose="a test")).error
        assert refused is not None
        assert "DRY_RUN" in str(refused)
        assert "plan_digest" not in refused.details
        unknown = (await client.invoke("core/fs.deletePath", {**GONE, "toolhub_plan": "x"}, purpose="a test")).error
        assert unknown is not None
        assert unknown.kind == "INPUT_SCHEMA_INVALID"


async def test_a_call_that_cannot_be_made_at_all_is_answered_with_the_reason_instead_of_a_plan(
    hub: RunningHub,
) -> None:
    async with connected(hub) as client:
        missing = text_of(await client.run_tool_call(block(DELETE, GONE), purpose="a test"))
        assert missing.startswith("NOT_FOUND: ")


async def test_the_plan_of_large_arguments_is_taken_out_when_they_are_read(tmp_path: Path) -> None:
    policy = OPEN_POLICY + "rules: [{id: plans, tools: [core/fs.writeText], effect: REQUIRE_PLAN}]\n"
    args = {"path": "a.txt", "text": "x" * 2_000_000}
    async with running_hub(tmp_path, policy=policy) as hub, connected(hub) as client:
        plan = facts(text_of(await client.run_tool_call(block("core__fs_writeText", args), purpose="a test")))
        sent = {**args, "toolhub_plan": plan["plan_digest"]}
        done = await client.run_tool_call(block("core__fs_writeText", sent), purpose="a test")
        assert "is_error" not in done, text_of(done)[:500]


async def test_only_tools_that_may_need_a_plan_describe_the_argument_for_it(tmp_path: Path) -> None:
    rule = "rules: [{id: plans, tools: [core/fs.copy], effect: REQUIRE_PLAN, when: 'args.overwrite == true'}]\n"
    async with running_hub(tmp_path, policy=OPEN_POLICY + rule) as hub, connected(hub) as client:
        definitions, _ = await client.export("anthropic", names=["core/fs.*"])
        planned = {each["name"] for each in definitions if "toolhub_plan" in each["input_schema"]["properties"]}
        assert planned == {DELETE, "core__fs_copy"}


async def test_a_property_of_the_tool_with_the_arguments_name_stays_its_own(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"toolhub_plan": {"type": "string"}}, "additionalProperties": False}
    policy = OPEN_POLICY + "rules: [{id: plans, tools: [acme/odd], effect: REQUIRE_PLAN}]\n"
    policy = policy.replace("read:fs", '"mcp:*", read:fs')

    class Recording(Script):
        async def _tool_odd(self, params: dict[str, Any], args: dict[str, Any], send: Any) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": json.dumps(args)}]}

    async with (
        serving(Recording(pages=[[tool("odd", inputSchema=schema)]])) as url,
        sourced_hub(tmp_path, {"acme": {"url": url}}, policy=policy) as hub,
        connected(hub) as client,
    ):
        args = {"toolhub_plan": "its own"}
        refused = text_of(await client.run_tool_call(block("acme__odd", args), purpose="a test"))
        told = facts(refused)
        assert told["plan_argument"] == "toolhub_plan_"
        sent = {**args, told["plan_argument"]: told["plan_digest"]}
        done = text_of(await client.run_tool_call(block("acme__odd", sent), purpose="a test"))
        assert json.loads(json.loads(done)["text"]) == args
