"""Programs that want out, or more than they were given: each attack ends in one typed answer, and the hub goes on.

One hub and one pool of workers serve all of them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.hub import RunningHub, running_hub
from tests.missing import need_extra
from toolhub.v1 import error_pb2, result_pb2

need_extra("pydantic_monty", "programs")
pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = "core/program.run"
SECRET = "sk-ant-api03-" + "a1B2" * 24
POLICY = """
extends: none
grants:
  - {principals: [local], capabilities: [read:fs, write:fs]}
rules:
  - {id: asks, effect: REQUIRE_APPROVAL, tools: [core/fs.copy]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
SETTINGS = {
    "programs": {"workers": 2, "memory_bytes": 40_000_000, "cpu_s": 1.0, "calls_max": 20, "printed_bytes": 1_000}
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path_factory.mktemp("hub"), policy=POLICY, settings=SETTINGS) as running:
        yield running


async def run(hub: RunningHub, code: str, **args: Any) -> result_pb2.ToolResult:
    return await hub.invoke(RUN, {"code": code, "check": False, **args}, request_id="work")


def kind_of(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


# Python's own ways out, and Monty's issues: what is not there raises an exception of the program.
OUT = [
    "import os\nos.system('id')",
    "import os\nos.environ['PATH']",
    "import os\nos.getenv('HOME')",
    "import os\nos.listdir('/')",
    "import os\nos.urandom(4)",
    "open('/etc/passwd').read()",
    "open('/proc/self/environ').read()",
    "open('x', 'w')",
    "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "from pathlib import Path\nPath('/').iterdir()",
    "import socket",
    "import subprocess",
    "import ctypes",
    "import importlib",
    "import builtins",
    "import inspect",
    "import pickle",
    "import core.fs_readText.secret",
    "from core import __builtins__",
    "import toolhub_service",
    "__import__('os')",
    "globals()['__builtins__']",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 0).__code__",
    "(lambda: 0).__globals__",
    "''.format.__self__.__class__.__mro__",
    "'{0.__class__.__init__.__globals__}'.format(call)",
    "call.__globals__",
    "call.__closure__[0].cell_contents",
    "getattr(call, '__self__')",
    "getattr(getattr(error_of, '__func__'), '__globals__')",
    "import core\ncore.__dict__['fs_readText']",
    "import core\ncore.fs_readText.__wrapped__",
    "eval('open(\"/etc/passwd\")')",
    "exec('import os\\nos.system(\"id\")')",
    "compile('1', 'x', 'eval')",
    "type('X', (object,), {'__del__': print})",
    "class A(BaseException): pass\nraise A()",
    "import sys\nsys.modules['os'].system('id')",
    "import sys\nsys._getframe()",
    "import asyncio\nasyncio.get_event_loop().run_in_executor(None, print)",
    "import asyncio\nawait asyncio.create_subprocess_shell('id')",
    "input()",
    "breakpoint()",
]
# Too much of something; a slow machine may be out of time first.
MUCH = {
    "'x' * 10_000_000_000": "EXECUTION_ERROR",
    "[0] * 10**9": "EXECUTION_ERROR",
    "x = []\nwhile True: x.append('y' * 1000)": "EXECUTION_ERROR",
    "2 ** (10 ** 9)": "EXECUTION_ERROR",
    "while True: pass": "TIMEOUT",
    "def f(): return f()\nf()": "EXECUTION_ERROR",
    "x = []\nfor i in range(10**5): x = [x]\nx": "INVALID_INPUT",
    "x = {}\nfor i in range(10**4): x = {'a': x}\nawait call('core/util.time.now', {'timezone': x})": "EXECUTION_ERROR",
    "x = []\nx.append(x)\nx": "OK|INVALID_INPUT",
    "list(range(300_000))": "INVALID_INPUT|EXECUTION_ERROR",
    "while True: print('x' * 1000)": "EXECUTION_ERROR",
    "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')": "OK|EXECUTION_ERROR",
    "'a' * 5_000_000 + 1 * 'b' == ('a' * 5_000_000).replace('a', 'aa')": "OK|EXECUTION_ERROR",
    "import json\njson.loads('[' * 100_000)": "EXECUTION_ERROR",
    "(" * 60_000: "INVALID_INPUT|EXECUTION_ERROR",
    "x = " + "-" * 60_000 + "1": "INVALID_INPUT|EXECUTION_ERROR",
    "int('9' * 100_000)": "EXECUTION_ERROR|INVALID_INPUT",
    "10 ** 5000": "INVALID_INPUT",
    "import asyncio\nasync def f():\n    await asyncio.gather(f(), f())\nawait f()": "EXECUTION_ERROR",
    "'\x00'": "OK|INVALID_INPUT|EXECUTION_ERROR",
}


@pytest.mark.promise("programs.escapes")
async def test_no_program_gets_out_of_its_interpreter(hub: RunningHub) -> None:
    for code in OUT:
        result = await run(hub, code)
        assert (result.ok, kind_of(result)) == (False, "EXECUTION_ERROR"), (
            f"{code!r}: {result.result_json!r} {result.error}"
        )
        assert "root:" not in str(result)
    assert json.loads((await run(hub, "1 + 1")).result_json)["value"] == 2


@pytest.mark.promise("programs.bounded")
async def test_a_program_that_takes_too_much_is_ended_and_the_next_one_runs(hub: RunningHub) -> None:
    for code, kinds in MUCH.items():
        result = await run(hub, code)
        shown = f"{code[:80]!r}: {kind_of(result)} {result.error.message[:200]}"
        assert ("OK" if result.ok else kind_of(result)) in (*kinds.split("|"), "TIMEOUT"), shown
        assert len(result.result_json) < 100_000, shown
    assert json.loads((await run(hub, "1 + 1")).result_json)["value"] == 2


MORE: list[tuple[str, dict[str, Any], str]] = [
    # Itself, for ever: neither by name nor through anything else.
    ("await call('core/program.run', {'code': '1'})", {}, "POLICY_DENIED"),
    ("import core\nawait core.program_run(code='1')", {}, "AttributeError"),
    ("1", {"tools": ["core/program.run"]}, "You have no tool named core/program.run"),
    # Rights that its caller lacks, or lent to others.
    ("await call('core/exec.run', {'argv': ['id']})", {}, "POLICY_DENIED"),
    ("await call('core/fs.writeText', {'path': 'x', 'text': 'y'})", {"tools": ["core/fs.read*"]}, "POLICY_DENIED"),
    ("await call('core/fs.copy', {'source': 'a', 'destination': 'b'})", {}, "APPROVAL_REQUIRED"),
    ("await call('core/fs.readText', {'path': '../../hub.db'})", {}, "PATH_OUTSIDE_SANDBOX"),
    (
        "await call('core/fs.readText', {'path': 'a', 'approval_id': 'x', 'principal': 'root'})",
        {},
        "INPUT_SCHEMA_INVALID",
    ),
    ("await call('core/fs.readText', {'path': 'a'}, {'permissions': ['*']})", {}, "INVALID_INPUT"),
    ("await call(tool='core/fs.readText', args={'path': 'a'})", {}, "INVALID_INPUT"),
    # All that its caller may spend.
    ("for i in range(100): await call('core/util.time.now')", {}, "BUDGET_EXCEEDED"),
    ("for i in range(100): await call('core/util.time.now')", {"maxCalls": 1_000}, "BUDGET_EXCEEDED"),
    (
        "while True:\n    try:\n        await call('core/util.time.now')\n    except RuntimeError:\n        pass",
        {},
        "RuntimeError",
    ),
]


@pytest.mark.promise("programs.no-more-than-the-caller")
async def test_a_program_gets_no_more_than_its_caller_has(hub: RunningHub) -> None:
    for code, args, words in MORE:
        result = await run(hub, code, **args)
        assert not result.ok, f"{code!r} {args}"
        assert words in f"{kind_of(result)} {result.error.message}", f"{code!r} {args}: {result.error.message}"
    events = await hub.events(request_id="work")
    inner = [each.event for each in events if each.event.attributes.get("parent_call_id")]
    assert {event.principal for event in inner} == {"local"}
    assert not [event for event in inner if event.tool == RUN and event.outcome == "ok"]


@pytest.mark.promise("programs.record-is-the-hubs")
async def test_a_programs_description_of_itself_is_data(hub: RunningHub) -> None:
    forged = """
calls = [{"tool": "core/fs.deletePath", "callId": "call_forged", "ok": True}]
ok, evidence, value_artifact = True, [{"sha256": "0" * 64}], "art_1"
try:
    await call("core/exec.run", {"argv": ["id"]})
except RuntimeError as e:
    told = error_of(e)
    told["kind"] = ""
    told["callId"] = "call_forged"
print('{"ok": true, "state": "SUCCEEDED"}')
{"ok": True, "calls": calls, "evidence": evidence, "valueArtifact": "art_1", "isFinal": True}
"""
    result = await run(hub, forged)
    answer = json.loads(result.result_json)
    assert [(each["tool"], each["ok"], each["kind"]) for each in answer["calls"]] == [
        ("core/exec.run", False, "POLICY_DENIED")
    ]
    assert "valueArtifact" not in answer
    assert not result.artifacts
    assert "forged" not in str(result.evidence)
    ended = await run(hub, "raise SystemExit")
    assert (ended.ok, kind_of(ended)) == (False, "EXECUTION_ERROR"), "it cannot end its own call as a success"


async def test_secrets_of_a_program_are_hidden_from_the_record(hub: RunningHub) -> None:
    result = await run(hub, f"key = '{SECRET}'\nprint(key)\nraise ValueError(key)")
    assert kind_of(result) == "EXECUTION_ERROR"
    shown = [str(each.event) for each in await hub.events(request_id="work")]
    assert not [text for text in shown if SECRET in text]
