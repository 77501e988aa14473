"""A door whose calls carry keys, and an adapter that waits to be let through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.runtime.door import POLICY, READ, WRITE, Door, ScriptedAdapter, a_call, a_door, a_tool
from toolhub_service.domain.call import BudgetRequest, Call, GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.ports import EventSink, KeyStore
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.domain.tool import IdempotencyMode, ToolKind, ToolSpec
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.stores.memory import MemoryKeys

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

    def __init__(self, said: list[str]) -> None:
        super().__init__(said)
        self.gate = asyncio.Event()

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        self.calls.append(call)
        number = len(self.calls)
        self.started.set()
        await self.gate.wait()
        return Outcome(value={"text": f"done {number}"})


def a_keyed_door(
    *answers: Any, store: KeyStore | None = None, tools: tuple[ToolSpec, ...] = (), policy: str = POLICY
) -> Door:
    door = a_door(*answers, tools=(READ, WRITE, IDEMPOTENT, DERIVED, *tools), policy=policy)
    return with_store(door, MemoryKeys(door.clock) if store is None else store)


def with_store(door: Door, store: KeyStore) -> Door:
    keys = Idempotency(store, door.observer, door.clock, door.randomness, ttl_s=TTL_S, max_timeout_s=600.0)
    door.pipeline = replace(door.pipeline, keys=keys)
    return door


def gated(door: Door) -> GatedAdapter:
    door.adapter = adapter = GatedAdapter(door.said)
    door.pipeline = replace(door.pipeline, adapters={ToolKind.CORE: adapter})
    return adapter


def call(number: int, spec: ToolSpec = WRITE, args: dict[str, Any] | None = None, **fields: Any) -> Call:
    """The same call under another call_id."""
    return a_call(spec, args, **{**KEY, **fields})._replace(call_id=f"call-{number}")


async def ask(door: Door, *arguments: Any, **fields: Any) -> ToolResult:
    answer = await door.pipeline.invoke(call(*arguments, **fields))
    assert isinstance(answer, ToolResult)
    return answer


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
