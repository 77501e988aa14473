"""What programs cost and save: their start, a call of theirs, forty calls in one, a suspended run, and tokens.

    python -m tests.bench.programs [--tokens]

`--tokens` counts with OpenAI's o200k_base by npm's gpt-tokenizer, which is installed into a temporary folder, over 500
tools of a real registry (set TEST_CORPORA). Each text is counted once; a model that is sent its context again with
every step pays for it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.page import at_share
from tests.bench.search_quality import load_tools, search_over
from tests.hub import RunningHub, running_hub
from toolhub.v1 import job_state_pb2
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export import openai_definition, plain_name
from toolhub_service.registry.stubs import function_names, python_stubs
from toolhub_service.runtime.steps import SILENT
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


def _said(what: str, took: tuple[float, float]) -> None:
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
    _said("start: a program without calls, a warm worker", await _ms(_TIMES, start))
    checked = [f"x = {number}\n{_LOOP}" for number in range(30)]
    texts = iter(checked)
    _said(
        "first run of a program, its types checked",
        await _ms(len(checked), lambda: within(_RUN, {"code": next(texts), "inputs": {"n": 0}})),
    )
    plain = await _ms(_TIMES, lambda: within(_NOW, {}))
    _said("a plain call in the hub", plain)
    none = await _ms(_TIMES // 3, lambda: within(_RUN, {"code": _LOOP, "inputs": {"n": 0}}))
    _said("core/program.run without calls, in the hub", none)
    many = await _ms(_TIMES // 10, lambda: within(_RUN, {"code": _LOOP, "inputs": {"n": _CALLS}}))
    inner = (many[0] - none[0]) / _CALLS
    print(f"a call of a program: {inner:.2f} ms, {inner - plain[0]:.2f} ms over a plain call")

    async def one_by_one() -> None:
        for _ in range(_CALLS):
            await hub.value(_NOW)

    _said(f"{_CALLS} unary calls over the wire", await _ms(20, one_by_one))
    in_turn = {"code": _LOOP, "inputs": {"n": _CALLS}}
    _said(f"one program with {_CALLS} calls over the wire", await _ms(20, lambda: hub.value(_RUN, in_turn)))
    _said("the same beside each other", await _ms(20, lambda: hub.value(_RUN, {"code": _BESIDE})))


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


# Tokens. A task: of forty issues, how many are open and name a regression?

_QUERIES: Final = ("list issues of a repository", "read one issue with its comments")
_RESULT: Final = {
    "number": 1234,
    "state": "open",
    "title": "Crash when a folder is empty",
    "body": "Steps to see it. " * 20,
}
_PROGRAM: Final = """import asyncio
issues = await call("tools/list_issues", {"owner": "acme", "repo": "shop", "perPage": 40})
where = {"owner": "acme", "repo": "shop"}
read = await asyncio.gather(*[call("tools/get_issue", {**where, "issue_number": i["number"]}) for i in issues])
[i["number"] for i in read if i["state"] == "open" and "regression" in i["body"]]
"""


def _texts(tools: Sequence[ToolSpec]) -> dict[str, list[str]]:
    definitions = [json.dumps(openai_definition(spec, plain_name(spec.name))) for spec in tools]
    search = search_over(tools)
    hits = [hit.tool for query in _QUERIES for hit in search.search(query, limit=5).hits]
    found = list({spec.name: spec for spec in hits}.values())
    brief = [json.dumps({"name": spec.name, "description": spec.description}) for spec in found]
    chosen = found[:3]
    call = json.dumps({"name": "get_issue", "arguments": {"owner": "acme", "repo": "shop", "issue_number": 1234}})
    calls = [call, json.dumps(_RESULT)] * _CALLS
    stubs = python_stubs(chosen, function_names(spec.name for spec in chosen))
    answer = json.dumps({"value": list(range(1200, 1212)), "printed": "", "calls": []})
    told = [json.dumps(openai_definition(spec, plain_name(spec.name))) for spec in chosen]
    return {
        f"{len(tools)} definitions, {_CALLS} calls": [*definitions, *calls],
        f"search, 3 definitions, {_CALLS} calls": [*_QUERIES, *brief, *told, *calls],
        "search, 3 stubs, one program": [*_QUERIES, *brief, stubs, _PROGRAM, answer],
    }


_COUNT: Final = """
const { encode } = require("gpt-tokenizer");
const rows = JSON.parse(require("fs").readFileSync(0, "utf8"));
const count = (texts) => texts.reduce((sum, text) => sum + encode(text).length, 0);
for (const name of Object.keys(rows)) rows[name] = count(rows[name]);
console.log(JSON.stringify(rows));
"""


def _tokens() -> None:
    tools = load_tools("docker_mcp_registry")[:500]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "gpt-tokenizer"], cwd=folder, check=True
        )
        (Path(folder) / "count.cjs").write_text(_COUNT)
        given = json.dumps(_texts(tools))
        ran = subprocess.run(["node", "count.cjs"], cwd=folder, input=given, capture_output=True, text=True, check=True)
    counted: dict[str, int] = json.loads(ran.stdout)
    first = next(iter(counted.values()))
    for name, count in counted.items():
        print(f"{name}: {count:,} tokens ({count / first:.1%})")


async def _measure() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_hub(Path(folder), policy=_POLICY) as hub:
            await _times(hub)
            await _suspended(hub)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", action="store_true")
    asked, _ = parser.parse_known_args()
    asyncio.run(_measure())
    if asked.tokens:
        _tokens()


if __name__ == "__main__":
    main()
