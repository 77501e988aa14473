"""Tool definitions as people write them."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import ParseDict

from toolhub.v1 import tool_pb2
from toolhub_service.cli.registry import NotATool, specs_of, tools_of
from toolhub_service.cli.terminal.output import message_as_json

TOOL = {"name": "crm/find", "version": "1.0.0", "inputSchema": {"type": "object"}, "examples": [{"args": {"id": 1}}]}


def test_schemas_and_examples_stand_as_json() -> None:
    (plain,) = tools_of(json.dumps(TOOL).encode())
    spec = ParseDict(plain, tool_pb2.ToolSpec())
    assert json.loads(spec.input_schema_json) == {"type": "object"}
    assert json.loads(spec.examples[0].args_json) == {"id": 1}


def test_the_output_of_show_can_be_registered_again() -> None:
    spec = tool_pb2.ToolSpec(
        name="a/b", version="1.0.0", input_schema_json=b"{}", digest="0" * 64, state=tool_pb2.TOOL_STATE_ACTIVE
    )
    (plain,) = tools_of(json.dumps(message_as_json(spec)).encode())
    again = ParseDict(plain, tool_pb2.ToolSpec())
    assert (again.name, again.input_schema_json, again.digest, again.state) == ("a/b", b"{}", "", 0)


@pytest.mark.parametrize("data", [TOOL, [TOOL], {"tools": [TOOL]}])
def test_one_tool_a_list_and_a_listing_are_accepted(data: object) -> None:
    assert [tool["name"] for tool in tools_of(json.dumps(data).encode())] == ["crm/find"]


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b'{"x": 1}', b'[{"name": 1}]', b"\xff"])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(NotATool):
        tools_of(data)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 1}, '`version` must be a string, not 1. Example: "version": "1.0.0"'),
        ({"tags": "crm"}, '`tags` must be a list, each entry a string, not "crm". Example: "tags": ["1.0.0"]'),
        ({"kind": "mcp"}, "`kind` must be one of TOOL_KIND_CORE, TOOL_KIND_MCP"),
        ({"annotations": {"readOnly": "yes"}}, '`annotations.readOnly` must be true or false, not "yes".'),
        (
            {"defaultLimits": {"timeout": 5}},
            '`defaultLimits.timeout` must be a duration in seconds, not 5. Example: "timeout": "30s"',
        ),
        ({"descripton": "x"}, "unknown field `descripton`; did you mean `description`?"),
        ({"examples": [{"arg": {}}]}, "unknown field `examples.arg`; did you mean `args`?"),
        ({"annotations": {"zzz": 1}}, "unknown field `annotations.zzz`; known fields: readOnly, destructive"),
    ],
)
def test_a_field_that_cannot_be_read_is_named_with_what_it_must_be_and_an_example(
    change: dict[str, object], expected: str
) -> None:
    with pytest.raises(NotATool) as refused:
        specs_of(json.dumps({**TOOL, **change}).encode())
    assert str(refused.value).startswith(f"crm/find: {expected}")
    assert "toolhub.v1" not in str(refused.value)
