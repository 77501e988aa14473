"""What programs cost: their start, a call of theirs, forty calls in one, a suspended run.

    python -m tests.bench.programs

What they save is counted by tests.bench.mcp_tokens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.page import at_share
from tests.hub import RunningHub, running_hub
from toolhub.v1 import job_state_pb2
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.result import SILENT, ToolResult
from toolhub_service.stores.codec import encode_kept_call
from toolhub_service.tools.programs.bounds import Printed
from toolhub_service.tools.programs.interpreter import Program
from toolhub_service.tools.programs.program_calls import ProgramCalls

_TIMES: Final = 300
_CALLS: Final = 40
_RUN, _NOW = "core/program.run", "core/util.time.now"
_POLICY: Final = """
extends: none
grants: [{principals: [local], capabilities: [read:fs, write:fs]}]
rules: [{id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.copy]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
_LOOP: Final = f"for i in range(inputs['n']):\n    await call('{_NOW}')\n"
_BESIDE: Final = f"import asyncio\nawait asyncio.gather(*[call('{_NOW}') for i in range({_CALLS})])\n1"
_SUSPENDED: Final = f"{_LOOP}await call('core/fs.copy', {{'source': 'a', 'destination': 'b'}})"


async def _ms(times: int, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """p50 and p99."""
    took_ms = []
    for _ in range(times):
        began_s = time.perf_counter()
        await work()
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    return at_share(sorted(took_ms), 0.5), at_share(sorted(took_ms), 0.99)


def _report(what: str, took: tuple[float, float]) -> None:
    print(f"{what}: p50 {took[0]:.2f} ms, p99 {took[1]:.2f} ms")


async def _times(hub: RunningHub) -> None:
    interpreter = hub.hub.toolbox.interpreter
    program = Program("1 + 1", {}, {}, {}, "", 0, "x", is_checked=False)

    async def start() -> None:
        host = ProgramCalls(None, {}, lambda _: None, 0)  # type: ignore[arg-type]  # it calls nothing
        await interpreter.run(program, host, Printed(0), asyncio.get_running_loop().time() + 60)

    async def within(tool: str, args: dict[str, Any]) -> None:
        call = Call(f"call_{time.perf_counter_ns()}", tool, args, Principal("local"), purpose="a bench")
        answer = await hub.hub.pipeline.invoke(call, SILENT)
        assert isinstance(answer, ToolResult), answer
        assert answer.ok, answer.error

    await within(_RUN, {"code": _LOOP, "inputs": {"n": 1}})
    _report("start: a program without calls, a warm worker", await _ms(_TIMES, start))
    checked = [f"x = {number}\n{_LOOP}" for number in range(30)]
    texts = iter(checked)
    _report(
        "first run of a program, its types checked",
        await _ms(len(checked), lambda: within(_RUN, {"code": next(texts), "inputs": {"n": 0}})),
    )
    plain = await _ms(_TIMES, lambda: within(_NOW, {}))
    _report("a plain call in the hub", plain)
    none = await _ms(_TIMES // 3, lambda: within(_RUN, {"code": _LOOP, "inputs": {"n": 0}}))
    _report("core/program.run without calls, in the hub", none)
    many = await _ms(_TIMES // 10, lambda: within(_RUN, {"code": _LOOP, "inputs": {"n": _CALLS}}))
    inner = (many[0] - none[0]) / _CALLS
    print(f"a call of a program: {inner:.2f} ms, {inner - plain[0]:.2f} ms over a plain call")

    async def one_by_one() -> None:
        for _ in range(_CALLS):
            await hub.value(_NOW)

    _report(f"{_CALLS} unary calls over the wire", await _ms(20, one_by_one))
    in_turn = {"code": _LOOP, "inputs": {"n": _CALLS}}
    _report(f"one program with {_CALLS} calls over the wire", await _ms(20, lambda: hub.value(_RUN, in_turn)))
    _report("the same beside each other", await _ms(20, lambda: hub.value(_RUN, {"code": _BESIDE})))


async def _suspended(hub: RunningHub) -> None:
    job = await hub.submit(_RUN, {"code": _SUSPENDED, "inputs": {"n": _CALLS}})
    async for answer in hub.jobs.WatchJob(_watch(job.job_id)):
        if answer.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
            break
    kept = await hub.hub.stores.inner_log.of_job(job.job_id)
    size_bytes = sum(len(encode_kept_call(each)) for each in kept)
    print(f"a run suspended after {_CALLS} calls: {len(kept)} answers in the store, {size_bytes / 1_000:.1f} KB")


def _watch(job_id: str) -> Any:
    from toolhub.v1 import job_service_pb2

    return job_service_pb2.WatchJobRequest(job_id=job_id)


async def _measure() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_hub(Path(folder), policy=_POLICY) as hub:
            await _times(hub)
            await _suspended(hub)


def main() -> None:
    asyncio.run(_measure())


if __name__ == "__main__":
    main()
