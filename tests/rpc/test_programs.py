"""core/program.run through a whole hub: its inputs, its errors and its stored output."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from tests.hub import RunningHub, request, running_hub
from tests.missing import need_extra
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_client import connect, export_stubs
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.tool import ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

need_extra("pydantic_monty", "programs")

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = "core/program.run"
POLICY = """
extends: none
grants:
  - {principals: [local], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
KINDS = error_pb2.ErrorKind


class HeldTool(Tool["HeldTool.In", "HeldTool.Out"]):
    """Works until it is cancelled."""

    name = "held/work.on"
    description = "Work until cancelled."
    limits = ToolLimits(timeout_s=120.0)

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        pass

    running = 0

    async def run(self, args: In, context: ToolContext) -> Out:
        HeldTool.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            HeldTool.running -= 1
        return self.Out()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    settings = {"programs": {"workers": 2, "printed_bytes": 500, "result_bytes": 10_000, "cpu_s": 2.0}}
    async with running_hub(
        tmp_path_factory.mktemp("hub"), policy=POLICY, settings=settings, tools=[HeldTool()]
    ) as running:
        yield running


async def run(hub: RunningHub, code: str, *, request_id: str = "work", **args: Any) -> result_pb2.ToolResult:
    return await hub.invoke(RUN, {"code": code, **args}, request_id=request_id)


async def value_of(hub: RunningHub, code: str, **args: Any) -> Any:
    result = await run(hub, code, **args)
    assert result.ok, f"{result.error.message} {result.error.details}"
    return json.loads(result.result_json)


async def cli(hub: RunningHub, *words: str, code: int = 0, given: str = "") -> Result:
    env = {"TOOLHUB_ADDRESS": hub.address}
    result = await asyncio.to_thread(CliRunner().invoke, toolhub, ["program", *words], env=env, input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


async def put(hub: RunningHub, path: str, text: str) -> None:
    written = await hub.invoke("core/fs.writeText", {"path": path, "text": text}, request_id="work")
    assert written.ok, written.error.message


async def test_a_program_calls_tools_by_module_and_by_name_beside_each_other(hub: RunningHub) -> None:
    for name in "abc":
        await put(hub, f"{name}.txt", name * 3)
    code = """
import asyncio
texts = await asyncio.gather(*[core.fs_readText(path=f"{n}.txt") for n in inputs["names"]])
one = await call("core/fs.readText", {"path": "a.txt"})
print("read", len(texts))
{"texts": [t["text"] for t in texts], "one": one["text"]}
"""
    answer = await value_of(hub, code, inputs={"names": ["a", "b", "c"]})
    assert answer["value"] == {"texts": ["aaa", "bbb", "ccc"], "one": "aaa"}
    assert answer["printed"] == "read 3\n"
    assert [(each["tool"], each["ok"]) for each in answer["calls"]] == [("core/fs.readText", True)] * 4
    assert len({each["callId"] for each in answer["calls"]}) == 4


@pytest.mark.promise("programs.no-more-than-the-caller")
async def test_a_failing_tool_is_an_exception_with_its_facts(hub: RunningHub) -> None:
    code = """
import core
found = []
for path in ["no.txt", "../../etc/passwd"]:
    try:
        await core.fs_readText(path=path)
    except RuntimeError as e:
        told = error_of(e)
        found.append([told["kind"], told["tool"], told["callId"][:5], str(e).split(":")[0]])
try:
    await call("core/nope.x")
except RuntimeError as e:
    found.append([error_of(e)["kind"]])
found.append(error_of(ValueError("mine"))["kind"])
found
"""
    answer = await value_of(hub, code)
    assert answer["value"] == [
        ["NOT_FOUND", "core/fs.readText", "call_", "NOT_FOUND"],
        ["PATH_OUTSIDE_SANDBOX", "core/fs.readText", "call_", "PATH_OUTSIDE_SANDBOX"],
        ["TOOL_NOT_FOUND"],
        "",
    ]
    assert [each["kind"] for each in answer["calls"]] == ["NOT_FOUND", "PATH_OUTSIDE_SANDBOX", "TOOL_NOT_FOUND"]


REFUSED: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("x = (1", {}, "INVALID_INPUT", "line 1", {"line": 1}),
    ("import core\nawait core.fs_readText(pth='a')", {}, "INVALID_INPUT", "line 2", {"line": 2}),
    ("import core\nawait core.fs_readTxt(path='a')", {}, "INVALID_INPUT", "Did you mean core.fs_readText?", {}),
    ("x = 1\nprint('so far')\ny = inputs['no']", {}, "EXECUTION_ERROR", "line 3", {"source": "y = inputs['no']"}),
    (
        "await call('core/fs.readText', {'path': 'no'})",
        {},
        "EXECUTION_ERROR",
        "NOT_FOUND",
        {"exception": "RuntimeError"},
    ),
    ("1", {"tools": ["core/nope"]}, "INVALID_INPUT", "no tool named core/nope", {"field": "tools"}),
    ("#" * 70_000, {}, "INVALID_INPUT", "longer than 65,536 bytes", {"max_bytes": 65_536}),
    ("{1: 2}", {}, "INVALID_INPUT", "no JSON (int)", {}),
    ("{1, 2}", {}, "INVALID_INPUT", "no JSON (set)", {}),
    ("float('nan')", {}, "INVALID_INPUT", "no JSON (float)", {}),
    ("x = []\nfor i in range(500): x = [x]\nx", {}, "INVALID_INPUT", "nested too deep", {}),
]


@pytest.mark.promise("programs.errors-with-the-line")
async def test_a_problem_of_a_program_is_reported_with_its_line(hub: RunningHub) -> None:
    for code, args, kind, words, details in REFUSED:
        result = await run(hub, code, **args)
        shown = f"{code!r}: {result.error.message} {result.error.details}"
        assert KINDS.Name(result.error.kind).removeprefix("ERROR_KIND_") == kind, shown
        assert words in result.error.message, shown
        details_of = dict(result.error.details)
        assert {key: details_of.get(key) for key in details} == details, shown


async def test_large_values_are_artifacts_and_long_output_is_cut(hub: RunningHub) -> None:
    result = await run(hub, "print('x' * 2000)\n'y' * 20_000")
    answer = json.loads(result.result_json)
    assert answer["value"] is None
    assert answer["printedCut"]
    assert len(answer["printed"]) == 500
    kept = await hub.hub.artifacts.open("local", answer["valueArtifact"])
    data = b"".join([chunk async for chunk in hub.hub.artifacts.read(kept)])
    assert json.loads(data) == "y" * 20_000
    assert [artifact.artifact_id for artifact in result.artifacts] == [answer["valueArtifact"]]


@pytest.mark.promise("programs.same-each-time")
async def test_a_program_does_the_same_each_time(hub: RunningHub) -> None:
    code = "import random, time\nrandom.seed(3)\na = time.time()\ntime.sleep(5)\n[random.random(), time.time() - a]"
    first, again = [(await value_of(hub, code))["value"] for _ in range(2)]
    assert first == again
    assert first[1] == 0
    order = """
import asyncio
async def twice(tool, args, after):
    await call(tool, args)
    await call(tool, after)
await asyncio.gather(
    twice("core/util.text.truncate", {"text": "x" * 100_000, "maxChars": 10}, {"text": "a", "maxChars": 1}),
    twice("core/util.hash.sha256Text", {"text": "b"}, {"text": "c"}),
)
"""
    calls = (await value_of(hub, order))["calls"]
    assert [each["tool"].rpartition(".")[2] for each in calls] == ["truncate", "sha256Text"] * 2


async def test_calls_that_nobody_awaits_are_cancelled_and_reported(hub: RunningHub) -> None:
    code = "import held\nfor i in range(12):\n    held.work_on()\nlen(inputs)"
    result = await run(hub, code)
    assert "is not awaited" in result.error.message
    calls = (await value_of(hub, code, check=False))["calls"]
    assert [each["kind"] for each in calls] == ["CANCELLED"] * 12
    assert HeldTool.running == 0


async def test_evidence_and_audit_identify_the_program(hub: RunningHub) -> None:
    code = "print('seen')\nawait call('core/util.time.now')"
    result = await run(hub, code, request_id="told")
    (evidence,) = [each for each in result.evidence if "interpreter" in each.attributes]
    answer = json.loads(result.result_json)
    assert evidence.sha256 == sha256(code.encode()).hexdigest()
    assert evidence.attributes["calls"] == answer["calls"][0]["callId"]
    assert evidence.attributes["interpreter"].startswith("pydantic-monty ")
    assert evidence.attributes["confinement"] in ("bubblewrap", "landlock")
    assert evidence.attributes["printed"] == "seen\n"
    assert len(evidence.attributes["stubs_revision"]) == 64
    events = await hub.events(request_id="told")
    by_call = {each.event.call_id: each.event for each in events}
    inner = by_call[answer["calls"][0]["callId"]]
    assert inner.tool == "core/util.time.now"
    assert inner.attributes["parent_call_id"] == result.call_id
    assert [each.event.type.value for each in events if each.event.call_id == result.call_id] == [
        "TOOL_CALLED",
        "TOOL_RESULT",
    ]


async def test_each_call_is_progress_for_who_watches(hub: RunningHub) -> None:
    code = "await call('core/util.time.now')\nawait call('core/fs.readText', {'path': 'no'})"
    job = await hub.submit(RUN, {"code": code})
    history = await hub.watched(job.job_id)
    assert history[-1].result.error.kind == KINDS.ERROR_KIND_EXECUTION_ERROR
    stream = hub.stub.InvokeStream(request(RUN, {"code": code}, message=pb.InvokeStreamRequest))
    last = [event.progress async for event in stream if event.HasField("progress")][-1]
    seen = json.loads(last.details_json)["recent"]
    assert [(each["call"], each["tool"], each["state"], each.get("kind", "")) for each in seen] == [
        (1, "core/util.time.now", "STARTED", ""),
        (1, "core/util.time.now", "SUCCEEDED", ""),
        (2, "core/fs.readText", "STARTED", ""),
        (2, "core/fs.readText", "FAILED", "NOT_FOUND"),
    ]
    assert seen[3]["callId"].startswith("call_")
    assert history[-1].progress.message == "call 2: core/fs.readText: NOT_FOUND"


async def test_stubs_are_exported_page_by_page_under_the_names_that_programs_use(hub: RunningHub) -> None:
    for form in (pb.EXPORT_FORMAT_PYTHON_STUBS, pb.EXPORT_FORMAT_TYPESCRIPT):
        whole = await hub.stub.ExportTools(pb.ExportToolsRequest(format=form))
        assert (whole.tools_json, whole.names["core.fs_readText"]) == (b"[]", "core/fs.readText")
        assert len(whole.names) == whole.total_size
        first = await hub.stub.ExportTools(pb.ExportToolsRequest(format=form, page_size=3))
        assert first.next_page_token
        assert first.text[:200] == whole.text[:200]
        assert "fs_readText(" in whole.text
        assert "web_fetch" not in whole.text, "what policy could not allow is not shown"
    python = await hub.stub.ExportTools(pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_PYTHON_STUBS))
    ast.parse(python.text)
    async with connect(hub.address) as client:
        assert await export_stubs(client) == python.text
    with pytest.raises(grpc.aio.AioRpcError, match="OPENAI, ANTHROPIC or MCP"):
        await hub.stub.ExportTools(
            pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_TYPESCRIPT), metadata=[("toolhub-face", "countbot")]
        )


async def test_the_command_line_runs_a_program_and_shows_its_calls(hub: RunningHub, tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text("now = await core.util_time_now()\n[inputs['n'] + 1, now['timezone']]\n")
    watched = await cli(hub, "run", str(program), "--inputs", '{"n": 41}', "--watch")
    assert json.loads(watched.stdout) == [42, "UTC"]
    lines = watched.stderr.splitlines()
    assert lines[0].split() == ["→", "1", "core/util.time.now"]
    assert lines[1].split()[:3] == ["✓", "1", "core/util.time.now"]
    program.write_text("x = 1\ny = x.no\n")
    wrong = await cli(hub, "run", str(program), code=1)
    assert "line 2" in wrong.stdout
    stubs = await cli(hub, "stubs", "--source", "core")
    assert "async def fs_readText(*, path: str" in stubs.stdout
    missing = await cli(hub, "run", str(tmp_path / "no.py"), code=2)
    assert "cannot be read: No such file" in missing.stderr
    whole = json.loads((await cli(hub, "run", "-", "-o", "json", given="2")).stdout)
    assert json.loads(whole["resultJson"] if "resultJson" in whole else json.dumps(whole["result"]))["value"] == 2
    submitted = await cli(hub, "run", "-", "--job", given="1 + 1")
    job_id = submitted.stdout.strip()
    assert (await hub.watched(job_id))[-1].result.ok


EXAMPLE = Path(__file__).parents[2] / "examples/programs/till.py"


async def test_the_example_makes_forty_calls_and_answers_with_one_line(hub: RunningHub) -> None:
    folder = hub.workspace("cli") / "sales"
    folder.mkdir(parents=True)
    for day in range(38):
        (folder / f"{day:02}.csv").write_text(f"tea,{day}\ncoffee,2\nwater,1\n")
    shown = await cli(hub, "run", str(EXAMPLE), "--inputs", '{"folder": "sales"}', "--watch")
    assert json.loads(shown.stdout) == {"days": 38, "best": ["tea", "coffee", "water"], "sold": 817}
    assert len([line for line in shown.stderr.splitlines() if "✓" in line]) == 40
    assert (folder / "report.txt").read_text() == "tea: 703\ncoffee: 76\nwater: 38"


FORESEEN = """
import core
text = (await core.fs_readText(path="seen.txt"))["text"]
made = await core.fs_writeText(path="made.txt", text=text.upper())
try:
    await call("core/exec.run", {"argv": ["id"]})
except RuntimeError:
    pass
if inputs.get("looks"):
    await core.fs_writeText(path=made["path"], text="x")
await core.util_time_now()
"""


@pytest.mark.promise("programs.dry-run")
async def test_a_dry_run_lists_the_calls_and_makes_none_that_has_an_effect(hub: RunningHub) -> None:
    await put(hub, "seen.txt", "abc")
    plan = await hub.plan(RUN, {"code": FORESEEN, "check": False}, request_id="work")
    assert plan.effects, plan
    *calls, end = plan.effects
    assert [line.split(" ")[1].rstrip(",.") for line in calls] == [
        "core/fs.readText",
        "core/fs.writeText",
        "core/exec.run",
        "core/util.time.now",
    ]
    assert '"text":"ABC"' in calls[1]
    assert "made.txt" in calls[1].partition(". ")[2], "with what the tool's own plan says"
    assert "refused: POLICY_DENIED" in calls[2]
    assert end == "It would call nothing else."
    assert plan.plan_digest
    assert not (hub.workspace("work") / "made.txt").exists()

    plan = await hub.plan(RUN, {"code": FORESEEN, "check": False, "inputs": {"looks": True}}, request_id="work")
    assert len(plan.effects) == 4
    assert "from here on" in plan.effects[-1]
    for use in ("str(r)", "r['path']", "r.path", "[r]"):
        after = f"await call('core/util.json.select', {{'json': {use}, 'path': 'x'}})"
        code = f"r = await call('core/fs.writeText', {{'path': 'q', 'text': 'q'}})\n{after}"
        plan = await hub.plan(RUN, {"code": code}, request_id="work")
        assert "from here on" in plan.effects[-1], use
        assert len(plan.effects) == 2
    plan = await hub.plan(RUN, {"code": "1 / 0"}, request_id="work")
    assert not plan.plan_digest
    assert "ZeroDivisionError in line 1" in plan.steps[-1].error.message


async def test_policy_can_demand_a_better_sandbox_of_programs_than_this_machine_has(tmp_path: Path) -> None:
    policy = POLICY + "sandbox: {minimum_for: {'core/program.*': bubblewrap}}\n"
    async with running_hub(tmp_path, policy=policy, settings={"tools": {"bubblewrap": "off"}}) as hub:
        refused = (await hub.invoke(RUN, {"code": "1"})).error
        assert (refused.kind, refused.retryable) == (KINDS.ERROR_KIND_TOOL_UNAVAILABLE, False)
        assert "core/program.run starts only what bubblewrap holds" in refused.message
