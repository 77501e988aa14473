"""Looking an execution up by its key: what is asked of n8n for it, and where the answers are read."""

from __future__ import annotations

import threading

import pytest

from tests.fakes.n8n import FOREVER, How
from tests.unit.adapters.n8n.flows import code, flow
from tests.unit.adapters.n8n.n8n_harness import SYNC, N8nHarness, n8n_harness
from toolhub_service.adapters.n8n.api import ApiError, Found
from toolhub_service.adapters.n8n.execution import Execution

MUCH = flow("much", "lastNode", code("Much"))


def reads(harness: N8nHarness) -> int:
    """Executions that were read with their data."""
    found = harness.n8n.asked("GET", "/api/v1/executions/*")
    assert all(asked.query["includeData"] == "true" for asked in found)
    return len(found)


async def called(harness: N8nHarness, times: int) -> None:
    """So many calls, each with a clear answer."""
    for at in range(times):
        await harness.value("echo", {"n": at}, key=f"call-{at}")


async def found_by(harness: N8nHarness, key: str, workflow_id: str = "echo") -> Found | None:
    assert harness.server.api is not None
    return await harness.server.api.find(workflow_id, key, 0)


async def test_an_execution_of_another_call_is_not_read_again() -> None:
    async with n8n_harness({"echo": SYNC}) as harness:
        await called(harness, 5)
        assert await found_by(harness, "ours") is None
        assert reads(harness) == 5
        for key in ("ours", "also ours"):
            assert await found_by(harness, key) is None
        assert reads(harness) == 5
        await called(harness, 1)
        assert await found_by(harness, "ours") is None
        assert reads(harness) == 6


async def test_another_calls_execution_is_found_by_its_own_key() -> None:
    async with n8n_harness({"echo": SYNC}) as harness:
        await called(harness, 3)
        assert await found_by(harness, "ours") is None
        key = harness.n8n.asked("POST", "/webhook/echo")[1].headers["x-idempotency-key"]
        found = await found_by(harness, key)
        assert found is not None
        assert found.execution.id == harness.n8n.executions.began[1].id
        assert found.execution.data["data"]


async def test_lists_are_asked_for_without_data() -> None:
    async with n8n_harness({"echo": SYNC}) as harness:
        await called(harness, 1)
        await found_by(harness, "ours")
        lists = harness.n8n.asked("GET", "/api/v1/executions")
        assert [asked.query["includeData"] for asked in lists] == ["false"] * 3


async def test_executions_that_no_call_began_are_not_read() -> None:
    async with n8n_harness({"echo": SYNC}) as harness:
        await called(harness, 2)
        harness.n8n.executions.began[0].mode = "trigger"
        await found_by(harness, "ours")
        assert reads(harness) == 1


@pytest.mark.parametrize(("chars", "is_aside"), [(10, False), (200_000, True)])
async def test_large_executions_are_read_beside_the_loop(chars: int, is_aside: bool) -> None:
    async with n8n_harness({"much": SYNC}, flows=[MUCH]) as harness:
        harness.n8n.code("Much", lambda items, _: [{"json": {"text": "x" * chars}}])
        await harness.value("much")
        (began,) = harness.n8n.executions.began
        api = harness.server.api
        assert api is not None

        def where(execution: Execution) -> int:
            assert execution.id == began.id
            return threading.get_ident()

        assert (await api.check_execution(began.id, where) != threading.get_ident()) is is_aside


async def test_executions_with_the_same_id_after_a_reinstall_of_n8n_have_their_own_keys() -> None:
    async with n8n_harness({"echo": SYNC}) as harness:
        await called(harness, 1)
        assert await found_by(harness, "ours") is None
        (began,) = harness.n8n.executions.began
        began.started_at = "2027-01-01T00:00:00.000Z"
        assert await found_by(harness, "ours") is None
        assert reads(harness) == 2


async def test_a_large_answer_that_is_no_json_is_trouble() -> None:
    async with n8n_harness({"much": SYNC}, flows=[MUCH]) as harness:
        harness.n8n.code("Much", lambda items, _: [{"json": {"text": "x" * 200_000}}])
        await harness.value("much")
        harness.n8n.fails("/api/v1/executions/*", How.TRUNCATED, times=FOREVER)
        with pytest.raises(ApiError, match="not JSON"):
            await found_by(harness, "ours", "much")
