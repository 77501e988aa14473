"""What each scenario of the suite wants its client to do, as calls through the hub's own door.

A scenario's server watches how it is spoken to; what is said here is only which tools are called with what. A scenario
that is not named is about connecting and listing, and a call of `test-tool` where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.scenario_client import ScenarioClient
from toolhub.v1 import error_pb2

INVALID_TOOLS: Final = 11
"""Of `http-invalid-tool-headers`."""

Play = Callable[[ScenarioClient], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Part:
    """How one scenario is played."""

    play: Play
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Of the source, besides what all have."""
    is_refused: bool = False
    """Whether the source must not be read, because its server cannot be trusted with credentials."""


async def read_tools(scenario_client: ScenarioClient) -> None:
    """What every source does by itself; the tool of the authorization scenarios is called where it is offered."""
    if "test-tool" in await scenario_client.tools():
        await scenario_client.value("test-tool")


async def add_numbers(scenario_client: ScenarioClient) -> None:
    value = await scenario_client.value("add_numbers", {"a": 5, "b": 3})
    assert "The sum of 5 and 3 is 8" in json.dumps(value)


async def take_defaults(scenario_client: ScenarioClient) -> None:
    assert "John Doe" in json.dumps(await scenario_client.value("test_client_elicitation_defaults"))


async def be_cut_off(scenario_client: ScenarioClient) -> None:
    """The stream that answers ends before its answer, which comes by the one that takes it up."""
    assert "Reconnection test completed" in json.dumps(await scenario_client.value("test_reconnection"))


async def be_asked(scenario_client: ScenarioClient) -> None:
    """Each question becomes an approval; another tool is called while it waits."""
    for tool, expected in (("test_mrtr_echo_state", "echo-state-ok"), ("test_mrtr_no_state", "no-state-ok")):
        approval_id = await scenario_client.asked(tool)
        await scenario_client.value("test_mrtr_unrelated")
        await scenario_client.answer(approval_id, {"confirmed": True})
        assert expected in json.dumps(await scenario_client.value(tool, approval_id=approval_id))
    await scenario_client.value("test_mrtr_no_result_type")


async def call_all_plain(scenario_client: ScenarioClient) -> None:
    for tool in ("test_headers", "my-hyphenated-tool"):
        await scenario_client.value(tool)


async def mirror_arguments(scenario_client: ScenarioClient) -> None:
    """As the scenario gives them; what is null there is not of its schema's type, so it is left out, as it may be."""
    for call in scenario_client.context["toolCalls"]:
        given = {name: value for name, value in call["arguments"].items() if value is not None}
        await scenario_client.value(call["name"], given)


async def call_even_the_invalid(scenario_client: ScenarioClient) -> None:
    """Every tool of the server: the hub must not let a call of the invalid ones out."""
    await scenario_client.value("valid_tool", {"region": "north"})
    invalid = await scenario_client.quarantined()
    assert len(invalid) == INVALID_TOOLS
    for tool in invalid:
        error = await scenario_client.refusal(tool)
        assert error.kind == error_pb2.ERROR_KIND_TOOL_QUARANTINED, error


async def look_closely(scenario_client: ScenarioClient) -> None:
    """Whatever may look at a schema does: it is described and called without the part that nobody fetches."""
    await scenario_client.input_schema("lookup_user", to_operator=True)
    error = await scenario_client.refusal("lookup_user", {"id": "ann", "profile": {"displayName": "Ann"}})
    assert error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR, "the scenario's server knows no calls"


async def hand_back_the_schema(scenario_client: ScenarioClient) -> None:
    schema = await scenario_client.input_schema("json_schema_2020_12_tool")
    await scenario_client.value("json_schema_echo", {"schema": schema})


PARTS: Final[Mapping[str, Part]] = {
    "tools_call": Part(add_numbers),
    "elicitation-sep1034-client-defaults": Part(take_defaults, {"elicitation": "defaults"}),
    "sse-retry": Part(be_cut_off),
    "request-metadata": Part(read_tools, {"elicitation": "ask"}),
    "sep-2322-client-request-state": Part(be_asked, {"elicitation": "ask"}),
    "http-standard-headers": Part(call_all_plain),
    "http-custom-headers": Part(mirror_arguments),
    "http-invalid-tool-headers": Part(call_even_the_invalid),
    "json-schema-ref-no-deref": Part(look_closely),
    "json-schema-2020-12-preservation": Part(hand_back_the_schema),
    "auth/resource-mismatch": Part(read_tools, is_refused=True),
    "auth/metadata-issuer-mismatch": Part(read_tools, is_refused=True),
}
OTHER: Final = Part(read_tools)
