"""Skills with sidecars, written for a test, and a hub over them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub import RunningHub, running_hub
from tests.rpc import real_servers as real
from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub.v1 import error_pb2, result_pb2

POLICY = """
extends: none
grants:
  - {principals: [local], capabilities: ["skill:*", "read:fs", "write:fs"]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
OBJECT = {"type": "object"}


def sidecar(mode: str, **manifest: Any) -> str:
    return json.dumps({"mode": mode, "input_schema": OBJECT, "output_schema": OBJECT, **manifest})


def script_skill(below: Path, name: str, code: str, *, text: str = "", **manifest: Any) -> Path:
    """A skill whose script, `run.py`, is this code. `text`: all of its SKILL.md."""
    entry = {"argv": manifest.pop("argv", ["{python}", "run.py"]), "env": manifest.pop("env", {})}
    files = {"run.py": code, "toolhub.json": sidecar("script", entry=entry, **manifest)}
    return write_skill(below, name, text=text, files=files)


def plan_skill(
    below: Path, name: str, steps: list[dict[str, Any]], output: Any, *, plan: Any = (), **more: Any
) -> Path:
    whole = {"steps": steps, "output": output, **dict(plan)}
    return write_skill(below, name, files={"toolhub.json": sidecar("plan", plan=whole, **more)})


@asynccontextmanager
async def skill_hub(
    home: Path, skills: Path, *, policy: str = POLICY, tools: Any = (), settings: Any = None, **terms: Any
) -> AsyncIterator[RunningHub]:
    """A hub over the skills in a folder, which it trusts at first sight; each has been read."""
    real.write_sources(home, {"skill": source_of(skills, **terms)})
    async with running_hub(home, policy=policy, tools=tools, settings=settings) as hub:
        desk = hub.hub.sourcing.sources
        assert await desk.wait_until_tried(timeout_s=real.WITHIN_S)
        reasons = [(status.name, status.reason) for status in desk.statuses() if status.reason]
        assert not reasons, reasons
        yield hub


def source_of(skills: Path, **terms: Any) -> dict[str, Any]:
    return {"kind": "skill", "skills": [{"path": str(skills)}], **terms}


def text_of(result: result_pb2.ToolResult) -> str:
    """How a call failed, in one line."""
    kind = error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")
    return f"{kind}: {result.error.message} {dict(result.error.details)}"


def running_with(word: str) -> list[int]:
    """Processes of the machine that were started with this word."""
    found = (path.name for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [int(pid) for pid in found if word.encode() in _words_of(pid)]


def _words_of(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
