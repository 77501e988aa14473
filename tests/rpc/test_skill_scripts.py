"""Scripts of skills through a whole hub: run in the sandbox, judged by the hub, with calls over their socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.fakes.langchain_source import gone
from tests.hub import RunningHub, request
from tests.rpc.skill_runs import OBJECT, POLICY, running_with, script_skill, skill_hub, text_of
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.event import EventType
from toolhub_service.sandbox.ladder import Ladder

COUNT = """
import csv, json, os, sys
from pathlib import Path
given = json.load(sys.stdin)
text = Path(given["file"]).read_text() if "file" in given else given["text"]
print("counting", file=sys.stderr)
with open(Path(os.environ["TOOLHUB_OUTPUT"]) / "words.csv", "w") as file:
    csv.writer(file).writerows([word] for word in text.split())
json.dump({"words": len(text.split()), "ok": False, "approved": True, "evidence": ["mine"]}, sys.stdout)
"""
CALLS = """
import json, os, subprocess, sys
from toolhub_tools import ToolError, call
told = {"read": call("core/fs.readText", {"path": "a.txt"})["text"]}
for name, args in [("core/fs.writeText", {"path": "b.txt", "text": "x"}), ("core/fs.readText", {"path": "../../x"}),
                   ("core/none.at", {}), ("core/fs.readText", {"pth": 1})]:
    try:
        call(name, args)
    except ToolError as error:
        told[name + str(len(told))] = error.kind
asked = {"close_fds": False, "capture_output": True, "text": True}
shell = subprocess.run(["tool", "core/fs.stat", '{"path": "a.txt"}'], **asked)
told["shell"] = json.loads(shell.stdout)["type"]
refused = subprocess.run(["tool", "core/fs.deletePath", '{"path": "a.txt"}'], **asked)
told["refused"] = [refused.returncode, refused.stderr.split(":")[0]]
cut_off = subprocess.run(["tool", "core/fs.stat", '{"path": "a.txt"}'], capture_output=True, text=True)
told["cut off"] = [cut_off.returncode, "start it with close_fds=False" in cut_off.stderr]
json.dump(told, sys.stdout)
"""
SHELL = """
read given
tool core/fs.readText '{"path": "a.txt"}' > "$TMPDIR/x"
printf '{"bytes": %s}' $(wc -c < "$TMPDIR/x")
"""


async def put(hub: RunningHub, path: str, text: str) -> None:
    written = await hub.invoke("core/fs.writeText", {"path": path, "text": text}, request_id="work")
    assert written.ok, written.error.message


async def test_a_script_is_run_on_its_arguments_and_what_it_made_is_proven_by_the_hub(tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    schema = {
        **OBJECT,
        "properties": {"file": {"type": "string", "format": "hub-artifact"}, "text": {"type": "string"}},
    }
    declared = [{"name": "*.csv", "media_type": "text/csv", "required": True}]
    harmless = {"read_only": True, "idempotent": True}
    script_skill(skills, "count", COUNT, input_schema=schema, artifacts=declared, annotations=harmless, version="1.2.3")
    script_skill(skills, "calls", CALLS, tools=["core/fs.*"], text=TEXT)
    script_skill(skills, "shell", SHELL, argv=["{sh}", "run.py"], tools=["core/fs.readText"])
    async with skill_hub(tmp_path, skills) as hub:
        result = await hub.invoke("skill/count", {"text": "one two three"})
        assert result.ok, text_of(result)
        assert json.loads(result.result_json) == {"words": 3, "ok": False, "approved": True, "evidence": ["mine"]}
        (artifact,) = result.artifacts
        assert (artifact.name, artifact.media_type, artifact.size_bytes) == ("words.csv", "text/csv", 17)
        proofs = {proof.ref.partition(":")[0]: proof for proof in result.evidence}
        skill = await hub.value("skill/count.read")
        assert proofs["skill"].sha256 == skill["digest"]
        assert proofs["artifact"].sha256 == artifact.sha256
        ran = dict(proofs["script"].attributes)
        assert (ran["exit_code"], ran["argv"], ran["confinement"]) == ("0", "{python} run.py", await Ladder().level())
        assert int(ran["cpu_ms"]) > 0
        assert int(ran["memory_max_bytes"]) > 1_000_000
        assert ran["interpreter"].startswith("CPython 3.")
        assert result.tool_version == "1.2.3"

        again = await hub.invoke("skill/count", {"file": artifact.artifact_id})
        assert json.loads(again.result_json)["words"] == 3
        assert "NOT_FOUND" in text_of(await hub.invoke("skill/count", {"file": "art_none"}))

        await put(hub, "a.txt", "forty-two")
        value = await hub.value("skill/calls", request_id="work")
        assert value == {
            "read": "forty-two",
            "core/fs.writeText1": "POLICY_DENIED",
            "core/fs.readText2": "PATH_OUTSIDE_SANDBOX",
            "core/none.at3": "TOOL_NOT_FOUND",
            "core/fs.readText4": "INPUT_SCHEMA_INVALID",
            "shell": "file",
            "refused": [1, "POLICY_DENIED"],
            "cut off": [1, True],
        }
        assert (await hub.value("skill/shell", request_id="work"))["bytes"] > 9
        (outer,) = await hub.events(tool="skill/calls", types=frozenset({EventType.TOOL_RESULT}))
        inner = [each.event for each in await hub.events(request_id="work") if each.event.purpose == "skill calls"]
        assert {event.attributes["parent_call_id"] for event in inner} == {outer.event.call_id}


TEXT = """---
name: calls
description: Calls tools.
allowed-tools: Read core/fs.stat Bash(git:*)
---
Call them.
"""

FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "exits": (
        "import sys; sys.exit('No such page: 7')",
        {},
        "EXECUTION_ERROR: The skill exits failed with exit code 1",
    ),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", {}, "failed with signal 15"),
    "talks": ("print('Working…'); print('{}')", {}, "its standard output is not one JSON value"),
    "silent": ("", {}, "its standard output is not one JSON value"),
    "half": ('print(\'{"a": 1, "a"\')', {}, "its standard output is not one JSON value"),
    "wrong": ("print('{\"n\": 1}')", {"output_schema": {**OBJECT, "required": ["words"]}}, "OUTPUT_SCHEMA_INVALID"),
    "large": ("print('[' + '1,' * 900 + '1]')", {"limits": {"stdout_bytes": 1000}}, "wrote 1,804 bytes of result"),
    "empty": ("print('{}')", {"artifacts": [{"name": "*.pdf", "required": True}]}, "no file is named *.pdf"),
    "many": (
        "import os\nfor n in range(3): open(os.environ['TOOLHUB_OUTPUT'] + f'/{n}', 'w')\nprint('{}')",
        {"limits": {"artifacts": 2}},
        "it has 3 files, and `limits.artifacts` is 2",
    ),
    "heavy": (
        "import os\nopen(os.environ['TOOLHUB_OUTPUT'] + '/x', 'w').write('x' * 5000)\nprint('{}')",
        {"limits": {"artifact_bytes": 4000}},
        "a file of more than 4,000 bytes",
    ),
    "links": (
        "import os\nos.symlink('/etc/passwd', os.environ['TOOLHUB_OUTPUT'] + '/x')\nprint('{}')",
        {},
        "`x`: a link that leads out",
    ),
    "pipes": (
        "import os\nos.mkfifo(os.environ['TOOLHUB_OUTPUT'] + '/x')\nprint('{}')",
        {},
        "neither a file nor a folder",
    ),
}


async def test_what_a_script_wrote_is_repaired_where_strict_parsers_refuse_it(tmp_path: Path) -> None:
    code = 'print(\'{"half": "\\\\ud83d", "n": NaN}\')'
    script_skill(tmp_path / "skills", "halves", code)
    async with skill_hub(tmp_path, tmp_path / "skills") as hub:
        result = await hub.invoke("skill/halves")
    assert result.ok, text_of(result)
    assert json.loads(result.result_json) == {"half": "\ufffd", "n": None}
    assert any("lone surrogates" in proof.summary for proof in result.evidence)


async def test_a_script_that_breaks_its_sidecar_contract_fails_with_advice_to_its_author(
    tmp_path: Path,
) -> None:
    for name, (code, manifest, _) in FAILURES.items():
        script_skill(tmp_path / "skills", name, code, **manifest)
    async with skill_hub(tmp_path, tmp_path / "skills") as hub:
        results = await asyncio.gather(*(hub.invoke(f"skill/{name}") for name in FAILURES))
        messages = dict(zip(FAILURES, map(text_of, results), strict=True))
        assert not {
            name: messages[name] for name, (_, _, expected) in FAILURES.items() if expected not in messages[name]
        }
        assert "No such page: 7" in messages["exits"]
        assert not any(result.artifacts for result in results)


async def test_standard_error_of_a_script_is_streamed_and_a_cancel_ends_it(tmp_path: Path) -> None:
    code = "import sys, time\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(600)"
    script_skill(tmp_path / "skills", "slow", code, argv=["{python}", "run.py", str(tmp_path)])
    async with skill_hub(tmp_path, tmp_path / "skills") as hub:
        asked = pb.InvokeStreamRequest(intent=request("skill/slow").intent)
        stream = hub.stub.InvokeStream(asked, timeout=60)
        chunks = [event.chunk.data async for event in until(stream, "chunk")]
        assert chunks == [b"begun\n"]
        running = running_with(str(tmp_path))
        assert running
        stream.cancel()
        assert all([await gone(pid) for pid in running])


async def until(stream: Any, field: str) -> AsyncIterator[Any]:
    """The first event that has the field."""
    async for event in stream:
        if event.HasField(field):
            yield event
            return


async def test_policy_can_demand_a_better_sandbox_of_a_skill_than_this_machine_has(tmp_path: Path) -> None:
    script_skill(tmp_path / "skills", "says", "print('{}')")
    policy, settings = POLICY + "sandbox: {minimum: bubblewrap}\n", {"tools": {"bubblewrap": "off"}}
    async with skill_hub(tmp_path, tmp_path / "skills", policy=policy, settings=settings) as hub:
        assert "skill/says starts only what bubblewrap holds" in text_of(await hub.invoke("skill/says"))
