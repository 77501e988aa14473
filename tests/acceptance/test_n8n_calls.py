"""Calls that are answered at once, through a whole hub, by a real n8n."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.acceptance.n8n_hub import evidence, kind, n8n_hub
from tests.acceptance.real_n8n import TOKEN, TOKEN_HEADER, RealN8n
from tests.hub import RunningHub
from toolhub.v1 import result_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEAKS = ("node_modules", "    at ", "stacktrace", f"{Path.home()}/", "/home/")
"""What stands in n8n's own error answers and must not come through."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory, n8n: RealN8n) -> AsyncIterator[RunningHub]:
    async with n8n_hub(Path(tmp_path_factory.mktemp("hub")), n8n) as running:
        yield running


async def refused(hub: RunningHub, tool: str, args: dict[str, Any] | None = None, **more: Any) -> result_pb2.ToolResult:
    """The result of a call that must fail, and that discloses nothing of n8n's machine."""
    result = await hub.invoke(tool, args, **more)
    assert not result.ok
    everything = str(result)
    assert not [leak for leak in LEAKS if leak in everything], everything
    return result


async def test_last_node_is_the_result(hub: RunningHub, n8n: RealN8n) -> None:
    result = await hub.invoke("flows/last", {"city": "Köln", "n": 1}, idempotency_key="of-the-caller")
    value = json.loads(result.result_json)
    assert (value["echo"], value["workflowId"]) == ({"city": "Köln", "n": 1}, n8n.workflows["hub-last"])
    assert value["idem"], "the idempotency key did not arrive"
    assert (await n8n.execution(value["executionId"]))["status"] == "success"


async def test_one_key_starts_a_workflow_once(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-code"))
    first, second = [await hub.value("flows/code", {"a": 2, "b": 3}, idempotency_key="once") for _ in range(2)]
    assert first == second
    assert first["sum"] == 5
    assert len(await n8n.executions("hub-code")) == before + 1


async def test_arguments_are_checked_before_n8n_is_asked(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-code"))
    result = await refused(hub, "flows/code", {"a": "two", "b": 3})
    assert kind(result) == "INPUT_SCHEMA_INVALID"
    assert len(await n8n.executions("hub-code")) == before


async def test_workflow_named_by_its_id_alone_is_called_by_its_webhook(hub: RunningHub) -> None:
    assert (await hub.value("flows/by_id", {"a": 20, "b": 22}))["sum"] == 42


async def test_respond_node_with_its_own_status_and_header_is_the_result(hub: RunningHub, n8n: RealN8n) -> None:
    result = await hub.invoke("flows/respond", {"n": 2})
    value = json.loads(result.result_json)
    assert value["echo"] == {"n": 2}
    assert evidence(result)["execution_id"] == value["executionId"]


async def test_a_workflow_that_was_only_started_is_not_reported_as_done(hub: RunningHub) -> None:
    result = await hub.invoke("flows/started", {"n": 3})
    assert result.ok
    assert evidence(result)["started_only"] == "true"


async def test_failure_on_the_last_node_names_its_cause(hub: RunningHub) -> None:
    result = await refused(hub, "flows/fails_last", {"n": 4})
    assert kind(result) == "EXECUTION_ERROR"
    assert "boom from workflow" in str(result.error)
    assert not result.error.retryable


async def test_failure_of_code_names_its_cause(hub: RunningHub) -> None:
    result = await refused(hub, "flows/fails_code", {"n": 5})
    assert kind(result) == "EXECUTION_ERROR"
    assert "code node boom" in result.error.message
    assert "in its node `Code`" in result.error.message


async def test_empty_answer_of_a_failed_workflow_is_a_failure_with_its_cause(hub: RunningHub) -> None:
    result = await refused(hub, "flows/fails_silently", {"n": 6})
    assert kind(result) == "EXECUTION_ERROR"
    assert "boom from workflow" in result.error.message
    assert result.error.upstream.status == 200


async def test_empty_answer_that_cannot_be_looked_up_is_no_success(hub: RunningHub) -> None:
    result = await refused(hub, "blind/fails_silently", {"n": 7})
    assert kind(result) == "UPSTREAM_ERROR"
    assert not result.error.retryable


async def test_an_answer_of_200_with_an_error_is_a_failure(hub: RunningHub) -> None:
    assert (await hub.value("flows/business", {"paid": True})) == {"ok": True}
    result = await refused(hub, "flows/business", {"paid": False})
    assert kind(result) == "EXECUTION_ERROR"
    assert "not paid" in str(result.error)


async def test_header_of_the_operator_opens_a_locked_webhook(hub: RunningHub) -> None:
    assert (await hub.value("flows/locked", {"n": 8}))["echo"] == {"n": 8}


async def test_a_wrong_header_is_reported_as_the_operators_problem(hub: RunningHub) -> None:
    result = await refused(hub, "locked/auth", {"n": 9})
    assert kind(result) == "TOOL_UNAVAILABLE"
    assert not result.error.retryable
    assert result.error.details["reason"] == "WEBHOOK_AUTH"


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("nowhere", "WEBHOOK_UNKNOWN"), ("inactive", "WEBHOOK_UNKNOWN"), ("wrong_method", "WEBHOOK_METHOD")],
)
async def test_a_webhook_that_does_not_answer_is_reported_with_the_cause(
    hub: RunningHub, tool: str, reason: str
) -> None:
    result = await refused(hub, f"blind/{tool}")
    assert kind(result) == "TOOL_UNAVAILABLE"
    assert not result.error.retryable
    assert result.error.details["reason"] == reason


async def test_a_webhook_secret_that_is_echoed_appears_only_in_the_value(hub: RunningHub) -> None:
    """A workflow whose last node passes the request on answers with its headers."""
    result = await hub.invoke("flows/telling", {"n": 11})
    assert json.loads(result.result_json)["body"] == {"n": 11}
    assert TOKEN_HEADER.lower() in json.loads(result.result_json)["headers"], "n8n did not tell the headers"
    result.ClearField("result_json")
    assert TOKEN not in str(result)
    assert TOKEN not in str(await hub.events())


async def test_answer_that_comes_too_late_is_no_failure_but_unknown(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-wait"))
    result = await refused(hub, "blind/slow", {"n": 10}, budget={"timeout_s": 1.0})
    assert kind(result) == "OUTCOME_UNKNOWN"
    assert not result.error.retryable
    assert len(await n8n.executions("hub-wait")) == before + 1


async def test_a_discovered_workflow_is_described_by_its_note_and_can_be_called(hub: RunningHub) -> None:
    names = sorted(spec.name for spec in hub.hub.toolbox.catalog.snapshot().tools if spec.source == "found")
    assert len(names) == 1, names
    (spec,) = [spec for spec in hub.hub.toolbox.catalog.snapshot().tools if spec.name == names[0]]
    assert "Greets whoever is named" in spec.description
    assert "open-schema" in spec.tags
    assert (await hub.value(names[0], {"name": "Ann"})) == {"greeting": "hello Ann"}


async def test_fifty_calls_at_once_get_each_its_own_answer(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-last"))
    values = await asyncio.gather(*(hub.value("flows/last", {"at_once": n}) for n in range(50)))
    assert [value["echo"]["at_once"] for value in values] == list(range(50))
    assert len({value["executionId"] for value in values}) == 50
    assert len(await n8n.executions("hub-last")) == before + 50
