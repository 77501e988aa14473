"""A budget's time is that of the whole call, and nobody is told to wait for hours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
import pytest_asyncio

from tests.hub import CALL_TIMEOUT_S, OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.sample_tools import Echo, Waits
from toolhub.v1 import error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors.failure import LONGEST_WAIT_S, ErrorKind, ToolError
from toolhub_service.domain.tool import ToolLimits

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY: Final = f"""{OPEN_POLICY}
limits:
  - {{id: daily, tools: [core/util.hash.sha256Text], quota: 1}}
  - {{id: hourly, tools: [core/util.json.select], quota: 1, quota_window_s: 3600}}
  - {{id: slow, tools: [core/util.text.truncate], rate_per_s: 0.001}}
  - {{id: fast, tools: [test/text.echo], rate_per_s: 0.1}}
"""


class OneAtATime(Waits):
    limits = ToolLimits(max_concurrency=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningHub, OneAtATime]]:
    tool = OneAtATime()
    async with running_hub(tmp_path_factory.mktemp("hub"), policy=POLICY, tools=[tool, Echo()]) as hub:
        yield hub, tool


@pytest.fixture
def hub(running: tuple[RunningHub, OneAtATime]) -> RunningHub:
    return running[0]


@pytest.mark.parametrize("timeout_s", [1e-9, 1e-6, 1e-5])
async def test_a_budget_that_is_over_before_the_tool_is_started_does_nothing(hub: RunningHub, timeout_s: float) -> None:
    now = await hub.invoke("core/util.time.now", budget={"timeout_s": timeout_s})
    assert now.error.kind == error_pb2.ERROR_KIND_TIMEOUT
    assert "nothing happened" in now.error.message
    args = {"path": "never.txt", "text": "x"}
    written = await hub.invoke("core/fs.writeText", args, budget={"timeout_s": timeout_s}, request_id="r")
    assert written.error.kind == error_pb2.ERROR_KIND_TIMEOUT
    assert not (hub.workspace("r") / "never.txt").exists()


async def test_it_holds_for_streams_too(hub: RunningHub) -> None:
    asked = request("core/util.time.now", budget={"timeout_s": 1e-6}, message=pb.InvokeStreamRequest)
    answers = [each async for each in hub.stub.InvokeStream(asked, timeout=CALL_TIMEOUT_S)]
    assert answers[-1].result.error.kind == error_pb2.ERROR_KIND_TIMEOUT


async def test_a_wait_for_a_key_that_another_call_holds_counts(running: tuple[RunningHub, OneAtATime]) -> None:
    hub, tool = running
    first = asyncio.create_task(hub.invoke(tool.name, {"text": "a"}, idempotency_key="k"))
    await asyncio.wait_for(tool.started.wait(), CALL_TIMEOUT_S)
    second = await hub.invoke(tool.name, {"text": "a"}, idempotency_key="k", budget={"timeout_s": 0.05})
    assert second.error.kind == error_pb2.ERROR_KIND_TIMEOUT
    waiting = await hub.invoke(tool.name, {"text": "b"}, budget={"timeout_s": 0.05})
    assert waiting.error.kind in (error_pb2.ERROR_KIND_TIMEOUT, error_pb2.ERROR_KIND_RATE_LIMITED)
    tool.let_go.set()
    assert (await first).ok


async def test_a_budget_with_time_enough_changes_nothing(hub: RunningHub) -> None:
    assert (await hub.invoke("core/util.time.now", budget={"timeout_s": CALL_TIMEOUT_S})).ok


@pytest.mark.parametrize(
    ("tool", "args", "shown"),
    [
        ("core/util.hash.sha256Text", {"text": "a"}, "24 hours"),
        ("core/util.json.select", {"json": {"a": 1}, "path": "a"}, "60 minutes"),
        ("core/util.text.truncate", {"text": "ab", "maxChars": 1}, "17 minutes"),
    ],
)
async def test_a_limit_that_passes_in_hours_invites_no_retry(
    hub: RunningHub, tool: str, args: dict[str, Any], shown: str
) -> None:
    if not (await hub.invoke(tool, args)).ok:
        pytest.fail(f"{tool} must pass once")
    error = (await hub.invoke(tool, args)).error
    assert error.kind == error_pb2.ERROR_KIND_RATE_LIMITED
    assert not error.retryable
    assert not error.HasField("retry_after")
    assert shown in error.message
    assert "Wait" not in error.message
    assert "Do not wait" in error.message
    assert cast(float, error.details["passes_in_s"]) > LONGEST_WAIT_S


async def test_a_limit_that_passes_soon_invites_one(hub: RunningHub) -> None:
    await hub.invoke("test/text.echo", {"text": "a"})
    error = (await hub.invoke("test/text.echo", {"text": "a"})).error
    assert error.retryable
    assert 0 < error.retry_after.ToTimedelta().total_seconds() <= 10.0
    assert "then send the call again unchanged" in error.message


@pytest.mark.parametrize("kind", [ErrorKind.RATE_LIMITED, ErrorKind.CIRCUIT_OPEN, ErrorKind.UPSTREAM_ERROR])
async def test_no_kind_invites_a_retry_in_hours_and_jobs_still_wait(kind: ErrorKind, tmp_path: Path) -> None:
    late = ToolError(kind=kind, message="later", retry_after_s=86_400.0)
    assert (late.invites_retry, late.invited_after_s, late.is_retryable) == (False, None, True)
    soon = ToolError(kind=kind, message="soon", retry_after_s=LONGEST_WAIT_S)
    assert (soon.invites_retry, soon.invited_after_s) == (True, LONGEST_WAIT_S)
