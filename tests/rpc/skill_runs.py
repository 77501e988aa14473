"""Skills with sidecars, written for a test, and a hub over them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub import RunningHub
from tests.rpc import real_servers as real
from tests.unit.adapters.skill.skill_folders import write_skill

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
async def skill_hub(home: Path, skills: Path, *, policy: str = POLICY, **terms: Any) -> AsyncIterator[RunningHub]:
    """A hub over the skills in a folder, which it trusts."""
    source = {"kind": "skill", "trust": "always", "skills": [{"path": str(skills)}], **terms}
    async with real.sourced_hub(home, {"skill": source}, policy=policy) as hub:
        yield hub
