"""Requests as models send them by mistake: each refusal states what to send instead."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.hub import RunningHub, request, running_hub

POLICY = """
grants: [{principals: [local], capabilities: [network, "execute:command"]}]
egress: [{hosts: [example.com]}]
commands: [{preset: safe}]
rules: [{id: no-select, effect: DENY, tools: [core/util.json.select]}]
limits: [{id: clock, tools: [core/util.time.now], quota: 1, quota_window_s: 7200}]
"""
FILE: dict[str, Any] = {"path": "there.txt", "text": "x"}
ONE = "one"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    folder: Path = tmp_path_factory.mktemp("repairable")
    async with running_hub(folder, policy=POLICY) as running:
        await running.value("core/fs.writeText", FILE, request_id=ONE)
        await running.value("core/util.time.now")
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("tool", "args", "remedies"),
    [
        ("read_file", {"path": "a"}, ["core/fs.readText"]),
        ("core/files.write_file", {"path": "a"}, ["core/fs.writeText"]),
        ("core__fs_readTxt", {"path": "a"}, ["core/fs.readText"]),
        ("bash", {"command": "ls"}, ["SearchTools"]),
        ("core/fs.readText", {"file_path": "a"}, ["`file_path`", "Add `path`: of type string"]),
        ("core/fs.readText", {"pth": "a"}, ["Did you mean `path`?"]),
        ("core/fs.readText", {"path": "a", "maxBytes": "100"}, ["/maxBytes", "integer", '"100"']),
        ("core/fs.readText", {"path": "missing.txt"}, ["core/fs.listDir", "Another request_id has another workspace"]),
        ("core/fs.readText", {"path": "/etc/passwd"}, ["relative to the workspace"]),
        ("core/fs.readText", {"path": "../x"}, ["relative to the workspace"]),
        ("core/fs.readText", {"path": "there.txt", "startLine": 5, "endLine": 2}, ["Swap them"]),
        ("core/fs.writeText", FILE, ["overwrite", "another path"]),
        ("core/fs.writeText", {**FILE, "path": "there.txt/below"}, ["a part of its path is a file", "path below"]),
        ("core/fs.editText", {"path": "there.txt", "oldText": "no", "newText": "y"}, ["core/fs.readText", "copy"]),
        ("core/http.fetchText", {"url": "https://example.org/"}, ["Use one of: example.com"]),
        ("core/http.fetchText", {"url": "example.com"}, ["begin it with https://"]),
        ("core/exec.run", {"command": "ls | wc"}, ["one command per call"]),
        ("core/exec.run", {"command": "rm -rf x"}, ["allowed_commands"]),
        ("core/util.json.select", {"json": {}, "path": "a"}, ["no-select", "Do without this call"]),
        ("core/util.time.now", {}, ["again in 2 hours", "Do not wait for that"]),
        ("core/job.status", {"jobId": "job_none"}, ["not yours"]),
        ("core/util.hash.sha256Text", {"text": {"$artifact": "art_none"}}, ["upload it again"]),
    ],
)
async def test_the_message_alone_states_what_to_send_instead(
    hub: RunningHub, tool: str, args: dict[str, Any], remedies: list[str]
) -> None:
    answer = await hub.invoke(tool, args, request_id=ONE)
    assert not answer.ok
    for words in remedies:
        assert words in answer.error.message


@pytest.mark.asyncio(loop_scope="module")
async def test_object_sent_as_its_text_is_distinguished_from_other_things_that_are_no_object(hub: RunningHub) -> None:
    asked = request("core/fs.readText", {}, request_id=ONE)
    asked.intent.args_json = json.dumps(json.dumps({"path": "there.txt"})).encode()
    assert "Send the object itself" in (await hub.stub.Invoke(asked)).result.error.message
    asked.intent.args_json = b'["there.txt"]'
    assert "must be a JSON object" in (await hub.stub.Invoke(asked)).result.error.message
