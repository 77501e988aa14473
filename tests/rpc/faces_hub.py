"""A hub behind its faces: a policy under which every example of the two older tool sets may run, and a client."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.http_server import Answer, RawServer, serving
from tests.hub import RunningHub, running_hub
from toolhub_client import Context, Hub, connect

POLICY = f"""
extends: none
grants:
- principals: ["*"]
  capabilities: [read:fs, write:fs, execute:command, network, read:web, "read:desktop", "read:memory",
    "write:memory", "send:message", "spawn:agent", "danger:destructive"]
roles:
- principals: [local]
  roles: [agent, operator, approver, auditor]
impersonate: [local]
rules:
- id: deleting-needs-no-plan
  effect: ALLOW
  tools: [core/fs.deletePath]
- id: sending-needs-no-person
  effect: ALLOW
  tools: [core/media.send]
- id: mallory-may-nothing
  effect: DENY
  when: context.user_id == "mallory"
- id: ask-before-writing-to-the-press
  effect: REQUIRE_APPROVAL
  tools: [core/fs.writeText]
  when: args.path.startsWith("press/")
commands:
- preset: safe
- name: sleep
  path: {shutil.which("sleep")}
  positionals: "[0-9.]+"
- name: "yes"
  path: {shutil.which("yes")}
- name: cat
  path: {shutil.which("cat")}
  positionals: ".+"
  positionals_are_paths: true
sandbox: {{max_write_bytes: 2000000}}
"""
_EGRESS = "egress: [{hosts: [127.0.0.1], ports: [%s], cidrs: [127.0.0.0/8], methods: [GET, POST]}]\n"


@asynccontextmanager
async def faced_hub(
    home: Path, respond: Answer, *, ports: tuple[int, ...] = (), policy: str = POLICY, **more: Any
) -> AsyncIterator[tuple[RunningHub, Hub, RawServer]]:
    """A hub, a client of it whose calls share a workspace, and the server that it may ask."""
    async with serving(respond) as server:
        lines = policy + _EGRESS % ", ".join(map(str, (server.port, *ports)))
        here = Context(request_id="faces", task_id="t")
        async with running_hub(home, policy=lines, **more) as hub, connect(hub.address, context=here) as client:
            yield hub, client, server


def code_of(answer: Mapping[str, Any]) -> str:
    """The code of a failure of local-tools, whose form is checked on the way."""
    assert set(answer) == {"success", "error"}, answer
    assert answer["success"] is False
    assert set(answer["error"]) == {"error_code", "message", "details"}
    assert answer["error"]["message"]
    return str(answer["error"]["error_code"])
