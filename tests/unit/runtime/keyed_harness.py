"""A pipeline whose calls carry keys, and an adapter that waits to be let through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.runtime.pipeline_harness import (
    POLICY,
    READ,
    WRITE,
    PipelineHarness,
    ScriptedAdapter,
    a_call,
    a_pipeline_harness,
    a_tool,
)
from toolhub_service.domain.call import BudgetRequest, Call, GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.ports import EventSink, KeyStore
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.domain.tool import IdempotencyMode, ToolKind, ToolSpec
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.stores.memory.keys import MemoryKeys

KEY = {"idempotency_key": "k-1"}
IDEMPOTENT = a_tool("test/text.put", capability="write:fs", idempotent=True)
DERIVED = replace(a_tool("test/text.send", capability="write:fs"), idempotency=IdempotencyMode.DERIVED, digest="d" * 64)
BROKEN = ToolError(ErrorKind.NETWORK_ERROR, "The connection broke.", retry_after_s=2.0)
MISSING = ToolError(ErrorKind.NOT_FOUND, "There is no such text.")
TTL_S = 3_600.0
MINUTE = BudgetRequest(timeout_s=60.0)
ONCE = BudgetRequest(max_retries=0)


class GatedAdapter(ScriptedAdapter):
    """Answers `done <n>` for its n-th call, once the gate is open."""

    def __init__(self, visited: list[str]) -> None:
        super().__init__(visited)
        self.gate = asyncio.Event()

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        self.calls.append(call)
        number = len(self.calls)
        self.started.set()
        await self.gate.wait()
        return Outcome(value={"text": f"done {number}"})


def a_keyed_harness(
    *answers: Any, store: KeyStore | None = None, tools: tuple[ToolSpec, ...] = (), policy: str = POLICY
) -> PipelineHarness:
    harness = a_pipeline_harness(*answers, tools=(READ, WRITE, IDEMPOTENT, DERIVED, *tools), policy=policy)
    return with_store(harness, MemoryKeys(harness.clock) if store is None else store)


def with_store(harness: PipelineHarness, store: KeyStore) -> PipelineHarness:
    keys = Idempotency(store, harness.observer, harness.clock, harness.randomness, ttl_s=TTL_S, max_timeout_s=600.0)
    harness.pipeline = replace(harness.pipeline, keys=keys)
    return harness


def gated(harness: PipelineHarness) -> GatedAdapter:
    harness.adapter = adapter = GatedAdapter(harness.visited)
    harness.pipeline = replace(harness.pipeline, adapters={ToolKind.CORE: adapter})
    return adapter


def call(number: int, spec: ToolSpec = WRITE, args: dict[str, Any] | None = None, **fields: Any) -> Call:
    """The same call under another call_id."""
    return a_call(spec, args, **{**KEY, **fields})._replace(call_id=f"call-{number}")


async def ask(harness: PipelineHarness, *arguments: Any, **fields: Any) -> ToolResult:
    answer = await harness.pipeline.invoke(call(*arguments, **fields))
    assert isinstance(answer, ToolResult)
    return answer


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
