"""A hub with API keys and three people with different rights."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub, settings_of
from toolhub.v1 import call_pb2, error_pb2, result_pb2
from toolhub_service.app.config_files.paths import Paths

POLICY = """
extends: none
grants:
  - principals: ["*"]
    capabilities: ["read:*", "write:*", "execute:command", "danger:destructive"]
roles:
  - {principals: [alice], roles: [agent, auditor]}
  - {principals: [ops], roles: [operator]}
rules:
  - {id: no-secrets, effect: DENY, tools: [core/fs.readText], when: 'args.path.startsWith("secrets/")'}
  - {id: bob-writes-not, effect: DENY, principals: [bob], tools: [core/fs.writeText]}
commands:
  - {preset: safe}
  - {name: env, path: /usr/bin/env}
"""
Metadata = Sequence[tuple[str, str]]


@dataclass
class KeyedHub:
    """A hub with API keys and the credentials of its people."""

    hub: RunningHub
    keys: dict[str, str]

    def of(self, name: str) -> Metadata:
        return (("authorization", f"Bearer {self.keys[name]}"),)

    async def invoke(self, name: str, tool: str, args: Any = None, **fields: Any) -> result_pb2.ToolResult:
        return await self.hub.invoke(tool, args, metadata=self.of(name), **fields)

    async def plan(self, name: str, tool: str, args: Any, **fields: Any) -> Any:
        asked = request(tool, args, mode=call_pb2.INVOKE_MODE_DRY_RUN, **fields)
        return (await self.hub.stub.Invoke(asked, timeout=CALL_TIMEOUT_S, metadata=self.of(name))).plan


@asynccontextmanager
async def keyed_hub(tmp_path: Path, *names: str, **settings: Any) -> AsyncIterator[KeyedHub]:
    chosen = {"auth": {"modes": ["api-key"]}, **settings}
    file = Paths(settings_of(tmp_path, chosen)).key_file()
    before = os.umask(0)  # as careless an operator as there can be
    try:
        keys = {name: file.create(name) for name in ("alice", "bob", "ops", *names)}
        async with running_hub(tmp_path, policy=POLICY, settings=chosen) as hub:
            yield KeyedHub(hub, keys)
    finally:
        os.umask(before)


def kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


async def words_of(call: Any) -> str:
    """The details of the status; empty when the RPC succeeded."""
    try:
        await call
    except grpc.aio.AioRpcError as refused:
        return refused.details() or ""
    return ""
