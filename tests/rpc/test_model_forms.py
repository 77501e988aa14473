"""Exports that each model's interface takes, and calls in their form, through a hub with an MCP server behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes import model_interfaces
from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.hub import RunningHub
from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from tests.rpc.real_servers import POLICY, sourced_hub, write_sources
from toolhub.v1 import error_pb2
from toolhub_client import Hub, connect
from toolhub_service.registry.export.definitions import Dialect, Exporter
from toolhub_service.registry.export.schema_repairs import repair

LOCAL: Final = (("grpc.use_local_subchannel_pool", 1),)
ODD: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "filter[status]": {"type": "string"},
        "arr": {"type": "array"},
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False},
        "parent": {"type": "object", "properties": {"page_id": {"type": "string"}, "$top": {"type": "integer"}}},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "recursive": {"type": "boolean"},
        "level": {"enum": [1, 2, 3]},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"type": ["string", "null"], "default": "none"},
    },
    "required": ["ids"],
}
OLD: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "object",
    "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
}
LONG: Final = " ".join(["It does a lot of things."] * 200)
VALIDATORS: Final[dict[str, Callable[[dict[str, Any]], list[str]]]] = {
    "openai": model_interfaces.openai,
    "openai_strict": model_interfaces.openai_strict,
    "anthropic": model_interfaces.anthropic,
    "gemini": model_interfaces.gemini,
}


class Recording(Script):
    """Keeps the arguments of each call of `odd`."""

    async def _tool_odd(self, params: dict[str, Any], args: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": json.dumps(args, sort_keys=True)}]}


def script() -> Recording:
    tools = [tool("odd", inputSchema=ODD), tool("old", inputSchema=OLD), tool("echo", description=LONG)]
    return Recording(pages=[tools])


@asynccontextmanager
async def served(home: Path, **settings: Any) -> AsyncIterator[tuple[RunningHub, Hub]]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(script()))
        hub = await stack.enter_async_context(sourced_hub(home, {"acme": {"url": url}}, settings=settings))
        yield hub, await stack.enter_async_context(connect(hub.address, options=LOCAL))


@pytest.fixture
async def hubs(tmp_path: Path) -> AsyncIterator[tuple[RunningHub, Hub]]:
    async with served(tmp_path) as made:
        yield made


def function_of(definition: dict[str, Any]) -> dict[str, Any]:
    return dict(definition.get("function", definition))


async def definition_of(hub: Hub, form: Any, name: str) -> dict[str, Any]:
    definitions, _ = await hub.export(form, names=[name])
    (definition,) = definitions
    return function_of(definition)


def given(message: dict[str, Any]) -> Any:
    """The arguments that the server got, from the message for the model."""
    response = message.get("functionResponse", {}).get("response", {}).get("output")
    return json.loads(json.loads(response or message.get("content") or message["output"])["text"])


@pytest.mark.promise("registry.exports-lead-back")
@pytest.mark.parametrize("form", VALIDATORS)
async def test_each_interface_accepts_every_tool_of_the_hub_and_of_an_odd_server(
    hubs: tuple[RunningHub, Hub], form: Any
) -> None:
    definitions, names = await hubs[1].export(form)
    assert len(definitions) == len(names) >= 3
    complaints = {function_of(each)["name"]: VALIDATORS[form](each) for each in definitions}
    assert {name: found for name, found in complaints.items() if found} == {}


async def test_an_array_without_items_and_a_tuple_are_exported_in_the_words_of_2020_12(
    hubs: tuple[RunningHub, Hub],
) -> None:
    for form, key in (("openai", "parameters"), ("anthropic", "input_schema"), ("mcp", "inputSchema")):
        schema = (await definition_of(hubs[1], form, "acme/odd"))[key]
        assert schema["properties"]["arr"] == {"type": "array", "items": {}}
        assert schema["properties"]["pair"] == {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "number"}],
            "items": {},
            "maxItems": 2,
        }
        assert "$schema" not in schema
        old = (await definition_of(hubs[1], form, "acme/old"))[key]
        assert old["properties"]["n"] == {"type": "number", "exclusiveMinimum": 0}


async def test_a_long_description_is_cut_by_sentence_for_openai_and_the_rest_can_be_asked_for(
    hubs: tuple[RunningHub, Hub],
) -> None:
    hub = hubs[1]
    for form in ("openai", "openai_strict"):
        shown = (await definition_of(hub, form, "acme/echo"))["description"]
        assert len(shown) <= 1_024
        assert shown.endswith("things. (Cut: call core__tool_describe for the rest.)")
    assert (await definition_of(hub, "anthropic", "acme/echo"))["description"] == LONG
    await hub.export("openai")
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "core__tool_describe",
        "arguments": '{"name":"acme__echo"}',
    }
    told = json.loads((await hub.run_tool_call(call))["output"])
    assert (told["name"], told["description"]) == ("acme/echo", LONG)
    refused = await hub.invoke("core/tool.describe", {"name": "acme__nothing"})
    assert refused.error is not None
    assert refused.error.kind == "TOOL_NOT_FOUND"


@pytest.mark.promise("registry.exports-lead-back")
async def test_null_for_what_is_left_out_is_dropped_before_a_strict_call(hubs: tuple[RunningHub, Hub]) -> None:
    hub = hubs[1]
    parameters = (await definition_of(hub, "openai_strict", "acme/odd"))["parameters"]
    assert sorted(parameters["required"]) == sorted(parameters["properties"])
    arguments = dict.fromkeys(parameters["properties"]) | {
        "ids": [1],
        "headers": '{"X-A": "1"}',
        "parent": {"page_id": "p", "$top": None},
    }
    message = await hub.run_tool_call(
        {"type": "function_call", "call_id": "c", "name": "acme__odd", "arguments": json.dumps(arguments)},
        purpose="a test",
    )
    assert given(message) == {"ids": [1], "headers": {"X-A": "1"}, "parent": {"page_id": "p"}, "note": "none"}


@pytest.mark.promise("registry.exports-lead-back")
async def test_names_that_anthropic_refuses_are_renamed_and_lead_back(hubs: tuple[RunningHub, Hub]) -> None:
    hub = hubs[1]
    properties = (await definition_of(hub, "anthropic", "acme/odd"))["input_schema"]["properties"]
    assert "filter_status_" in properties
    assert "_top" in properties["parent"]["properties"]
    block = {"type": "tool_use", "id": "t", "name": "acme__odd"}
    renamed = {"filter_status_": "x", "parent": {"_top": 3}, "ids": []}
    message = await hub.run_tool_call({**block, "input": renamed}, purpose="a test")
    assert given(message) == {"filter[status]": "x", "parent": {"$top": 3}, "ids": [], "note": "none"}
    own = await hub.run_tool_call({**block, "input": {"filter[status]": "x", "ids": []}}, purpose="a test")
    assert given(own)["filter[status]"] == "x"


async def test_gemini_calls_with_members_as_texts_and_is_answered_in_its_form(hubs: tuple[RunningHub, Hub]) -> None:
    hub = hubs[1]
    await hub.export("gemini")
    call = {"name": "acme__odd", "args": {"ids": [1], "level": "2", "arr": None, "filter_status_": "x"}, "id": "7"}
    message = await hub.run_tool_call({"functionCall": call}, purpose="a test")
    assert message["functionResponse"].keys() == {"name", "id", "response"}
    assert given(message) == {"filter[status]": "x", "ids": [1], "level": 2, "note": "none"}
    refused = await hub.run_tool_call({**call, "args": {}})
    assert "INPUT_SCHEMA_INVALID" in refused["functionResponse"]["response"]["error"]


@pytest.mark.parametrize("era", ERAS)
async def test_names_are_renamed_over_mcp_and_lead_back(tmp_path: Path, era: str) -> None:
    async with serving(script()) as url:
        write_sources(tmp_path, {"acme": {"url": url}})
        async with mcp_hub(tmp_path, policy=POLICY, shown="full") as hub, hub.client(era) as client:
            assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
            (odd,) = [each for each in (await client.list_tools()).tools if each.name == "acme__odd"]
            assert "filter_status_" in odd.input_schema["properties"]
            answer: Any = await client.call_tool("acme__odd", {"filter_status_": "x", "ids": [], "parent": {"_top": 1}})
            assert json.loads(answer.content[0].text) == {
                "filter[status]": "x",
                "ids": [],
                "parent": {"$top": 1},
                "note": "none",
            }


async def test_a_job_and_a_session_read_arguments_in_their_form(hubs: tuple[RunningHub, Hub]) -> None:
    hub = hubs[1]
    args = {"ids": [1], "note": None, "headers": '{"X-A": "1"}'}
    wanted = {"ids": [1], "note": "none", "headers": {"X-A": "1"}}
    job = await hub.submit_job("acme/odd", args, purpose="a test", args_form="openai_strict")
    assert json.loads((await hub.job_answer(job.job_id)).value["text"]) == wanted
    async with hub.session() as session:
        answer = await session.invoke("acme/odd", args, purpose="a test", args_form="openai_strict")
    assert json.loads(answer.value["text"]) == wanted


async def test_large_arguments_are_read_in_their_form(hubs: tuple[RunningHub, Hub]) -> None:
    long = {"ids": list(range(40_000)), "filter_status_": "x" * 20_000}
    answer = await hubs[1].invoke("acme/odd", long, purpose="a test", args_form="anthropic")
    assert '"filter[status]": "xxx' in answer.value["text"]
    assert '"filter_status_"' not in answer.value["text"]


STRINGIFIED: Final = {"parent": '{"page_id": "p"}', "ids": "[1, 2]", "recursive": "true", "note": "[1]"}


async def test_stringified_arguments_are_refused_by_default(hubs: tuple[RunningHub, Hub]) -> None:
    result = await hubs[0].invoke("acme/odd", STRINGIFIED)
    assert result.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID
    assert "Send the JSON itself" in result.error.message


async def test_stringified_arguments_are_repaired_where_the_operator_allows_it_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, arguments={"repair_texts": True}) as (hub, client):
        answer = await client.invoke("acme/odd", STRINGIFIED, purpose="a test")
        assert json.loads(answer.value["text"]) == {
            "parent": {"page_id": "p"},
            "ids": [1, 2],
            "recursive": True,
            "note": "[1]",
        }
        remarks = [each.attributes["repaired_arguments"] for each in answer.result.evidence if each.attributes]
        assert "/parent, /ids, /recursive" in remarks
        wrong = await hub.invoke("acme/odd", {"ids": '["x"]'})
        assert wrong.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID
        plain = await client.invoke("acme/odd", {"ids": [1]}, purpose="a test")
        assert not any("repaired_arguments" in each.attributes for each in plain.result.evidence)


@pytest.mark.parametrize("form", VALIDATORS)
async def test_each_interface_accepts_all_of_the_hubs_own_tools_configured_or_not(
    hubs: tuple[RunningHub, Hub], form: str
) -> None:
    catalog = hubs[0].hub.toolbox.catalog
    own = [spec for spec in catalog.all() if spec.name.startswith("core/")]
    assert {"core/http.request", "core/db.query", "core/db.execute"} <= {spec.name for spec in own}
    for definition in Exporter(catalog).export(Dialect[form.upper()], own).tools:
        assert VALIDATORS[form](dict(definition)) == []


async def test_the_hub_declares_the_items_of_its_own_arrays(hubs: tuple[RunningHub, Hub]) -> None:
    for spec in hubs[0].hub.toolbox.catalog.all():
        if spec.name.startswith("core/"):
            assert repair(spec.input_schema) is spec.input_schema, spec.name
            assert repair(spec.output_schema) is spec.output_schema, spec.name
