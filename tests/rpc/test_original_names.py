"""The table of original names, held to a running hub: it publishes, refuses and sends what the table states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes.http_server import always, response, serving
from tests.hub import RunningHub, running_hub
from tests.originals import Row, designs
from toolhub.v1 import error_pb2, result_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.tool import Annotations, CostHints
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

ALL = "grants: [{principals: [local], capabilities: ['*', 'danger:destructive']}]\n"
EGRESS = "egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8], methods: [GET, POST]}]\n"


def arguments() -> Iterator[tuple[Row, str, str]]:
    """(row, tool, argument) wherever the table names an argument."""
    for design in designs():
        for row in design.rows:
            for kind, tool, name in (words for here in row.here if len(words := here.split(" ")) == 3):
                if kind == "argument":
                    yield row, tool, name


async def schema_of(hub: RunningHub, tool: str) -> dict[str, Any]:
    found = await hub.stub.GetTool(pb.GetToolRequest(name=tool))
    schema: dict[str, Any] = json.loads(found.tool.input_schema_json)
    return schema


async def test_the_published_schemas_have_the_defaults_and_bounds_of_the_table(tmp_path: Path) -> None:
    compared = 0
    async with running_hub(tmp_path, policy=ALL) as hub:
        for row, tool, name in arguments():
            declared = (await schema_of(hub, tool))["properties"][name]
            if "default" in row.declared and row.here[0] == f"argument {tool} {name}":
                assert declared["default"] == row.declared["default"], row
                compared += 1
            if "…" in row.declared.get("bounds", "") and row.here[0] == f"argument {tool} {name}":
                low, high = row.declared["bounds"].replace(",", "").split(" … ")
                assert (declared["minimum"], declared["maximum"]) == (int(low), int(high)), row
                compared += 1
    assert compared > 40


async def test_a_value_beyond_its_bounds_is_refused_by_its_argument(tmp_path: Path) -> None:
    refused = []
    async with running_hub(tmp_path, policy=ALL) as hub:
        for tool, name in sorted({(tool, name) for _, tool, name in arguments()}):
            declared = (await schema_of(hub, tool))["properties"][name]
            beyond: list[tuple[str, Any]] = [
                (keyword, declared[keyword] + by)
                for keyword, by in (("minimum", -1), ("maximum", 1))
                if keyword in declared
            ]
            beyond += [("enum", "none of these")] if "enum" in declared else []
            for keyword, value in beyond:
                result = await hub.invoke(tool, {name: value})
                if result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE:  # lacks a package, a database, a display
                    continue
                assert result.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID, (tool, name, value)
                assert (f"/{name}", keyword) in {(each.path, each.keyword) for each in result.error.violations}
                refused.append((tool, name))
    assert len(refused) > 30


async def test_an_argument_that_no_tool_has_is_refused(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=ALL) as hub:
        for tool in sorted({tool for _, tool, _ in arguments()}):
            result = await hub.invoke(tool, {"noSuchArgument": 1})
            if result.error.kind != error_pb2.ERROR_KIND_TOOL_UNAVAILABLE:
                assert result.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID, tool
                assert "additionalProperties" in {each.keyword for each in result.error.violations}, tool


async def test_the_user_agent_is_the_hubs_name_unless_it_is_set(tmp_path: Path) -> None:
    for settings, expected in (({}, "tool-hub/"), ({"tools": {"user_agent": "acme-agents/7"}}, "acme-agents/7")):
        async with (
            serving(always(response(b"hello"))) as server,
            running_hub(tmp_path / str(len(expected)), policy=ALL + EGRESS % server.port, settings=settings) as hub,
        ):
            await hub.value("core/http.fetchText", {"url": server.url()})
            assert server.asked[0].headers["user-agent"].startswith(expected)


async def test_evidence_of_a_text_has_its_type(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=ALL) as hub:
        result = await hub.invoke("core/util.text.truncate", {"text": "hello", "maxChars": 3})
        assert [each.type for each in result.evidence] == [result_pb2.EVIDENCE_TYPE_TEXT]


class Translate(Tool["Translate.In", "Translate.Out"]):
    """Declares all that a definition can say."""

    name = "acme/text.translate"
    description = "Translate a text."
    version = "2.1.0"
    tags = ("text", "language")
    capabilities = frozenset({"read:web"})
    annotations = Annotations(read_only=True, open_world=True, supports_streaming=True)
    cost = CostHints(latency_ms_p50=120, latency_ms_p95=900)

    class In(ToolInput, frozen=True):
        text: str

    class Out(ToolOutput, frozen=True):
        text: str

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(text=args.text)


async def test_a_definition_is_published_with_all_its_fields(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=ALL, tools=[Translate()]) as hub:
        published = (await hub.stub.GetTool(pb.GetToolRequest(name=Translate.name))).tool
        plain = (await hub.stub.GetTool(pb.GetToolRequest(name="core/fs.stat"))).tool
    assert (published.name, published.version, published.description) == (
        "acme/text.translate",
        "2.1.0",
        "Translate a text.",
    )
    assert published.kind == plain.kind == tool_pb2.TOOL_KIND_CORE
    assert (set(published.tags), list(published.capabilities)) == ({"text", "language"}, ["read:web"])
    for schema in (published.input_schema_json, published.output_schema_json):
        assert json.loads(schema)["properties"] == {"text": {"type": "string"}}
    cost = published.cost_hints
    assert (cost.latency_p50.ToMilliseconds(), cost.latency_p95.ToMilliseconds(), cost.is_async) == (120, 900, False)
    assert (published.annotations.supports_streaming, plain.annotations.supports_streaming) == (True, False)
