"""A model's tool calls through the Python client, and the tools of a hub as tools of LangChain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.tools import BaseTool

from tests.hub import running_hub
from toolhub_client import Hub, connect
from toolhub_client.langchain import load_tools

LOCAL = (("grpc.use_local_subchannel_pool", 1),)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with running_hub(tmp_path) as running, connect(running.address, options=LOCAL) as client:
        yield client


async def exported(hub: Hub, form: Any, name: str) -> str:
    """What the model calls it."""
    _, names = await hub.export(form, names=[name])
    (short,) = names
    return short


@pytest.mark.promise("clients.model-calls")
async def test_call_of_openai_is_made_and_answered_in_its_form(hub: Hub) -> None:
    name = await exported(hub, "openai", "core/util.hash.sha256Text")
    function = SimpleNamespace(name=name, arguments='{"text": ""}')
    message = await hub.run_tool_call(SimpleNamespace(id="call_7", type="function", function=function))
    assert (message["role"], message["tool_call_id"]) == ("tool", "call_7")
    assert json.loads(message["content"])["sha256"] == EMPTY


async def test_call_of_the_responses_api_is_made_and_answered_in_its_form(hub: Hub) -> None:
    name = await exported(hub, "openai", "core/util.hash.sha256Text")
    item = {"type": "function_call", "call_id": "call_7", "name": name, "arguments": '{"text": ""}'}
    message = await hub.run_tool_call(item)
    assert (message["type"], message["call_id"]) == ("function_call_output", "call_7")
    assert json.loads(message["output"])["sha256"] == EMPTY


@pytest.mark.promise("clients.model-calls")
async def test_block_of_anthropic_is_made_and_answered_in_its_form(hub: Hub) -> None:
    name = await exported(hub, "anthropic", "core/util.hash.sha256Text")
    message = await hub.run_tool_call({"type": "tool_use", "id": "toolu_7", "name": name, "input": {"text": ""}})
    assert (message["type"], message["tool_use_id"]) == ("tool_result", "toolu_7")
    assert json.loads(message["content"])["sha256"] == EMPTY
    assert "is_error" not in message


async def test_a_refusal_states_the_remedy_to_the_model(hub: Hub) -> None:
    block = {"type": "tool_use", "id": "toolu_7", "name": "core/fs.readText", "input": {"path": "../secret"}}
    message = await hub.run_tool_call(block, purpose="a test")
    assert message["is_error"]
    kind, *_, advice = message["content"].splitlines()
    assert kind.startswith("PATH_OUTSIDE_SANDBOX: ")
    assert advice == "Use a path relative to the workspace, without symbolic links."


@pytest.mark.parametrize("arguments", ["{", "[1]", '"text"'])
async def test_arguments_that_are_no_object_are_refused_without_asking_the_hub(hub: Hub, arguments: str) -> None:
    call = {"type": "function", "id": "call_7", "function": {"name": "core/util.time.now", "arguments": arguments}}
    message = await hub.run_tool_call(call)
    assert message["content"].startswith("INVALID_INPUT: ")


async def test_a_malformed_tool_call_is_refused(hub: Hub) -> None:
    with pytest.raises(TypeError, match="is no tool call"):
        await hub.run_tool_call({"type": "text", "text": "hello"})


def by_name(tools: list[BaseTool], name: str) -> BaseTool:
    return next(tool for tool in tools if tool.name == name)


async def test_tools_of_a_hub_are_tools_of_langchain(hub: Hub) -> None:
    tools = await load_tools(hub, names=["core/util.hash.*", "core/fs.readText"], purpose="a test")
    hashing = by_name(tools, await exported(hub, "anthropic", "core/util.hash.sha256Text"))
    assert "text" in hashing.args
    assert hashing.description
    assert json.loads(await hashing.ainvoke({"text": ""}))["sha256"] == EMPTY
    reading = by_name(tools, await exported(hub, "anthropic", "core/fs.readText"))
    refused = await reading.ainvoke({"path": "../secret"})
    assert refused.startswith("PATH_OUTSIDE_SANDBOX: ")
