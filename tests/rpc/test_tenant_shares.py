"""One tenant floods the hub: the others find their share of it free."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import running_hub
from tests.rpc.principals import BY_KEY, WAIT, Principals
from tests.rpc.sample_tools import Echo, Waits
from tests.rpc.statuses import failed
from toolhub.v1 import error_pb2

TENANTS = """
extends: none
tenants:
  - {name: acme, principals: ["acme-*"]}
  - {name: globex, principals: ["globex-*"]}
grants: [{principals: ["*"], capabilities: [read:fs]}]
"""
LIMITED = f"{TENANTS}limits: [{{id: fair, per: tenant, quota: 3}}]\n"
NAMES = ("acme-one", "acme-two", "globex-bot")
ECHO = "test/text.echo"


@pytest.mark.promise("tenants.fair")
async def test_a_tenant_that_floods_holds_half_of_the_calls_and_no_other_is_refused(tmp_path: Path) -> None:
    waits = Waits()
    settings = {**BY_KEY, "server": {"max_in_flight": 8}}
    async with running_hub(tmp_path, policy=TENANTS, settings=settings, tools=[waits, Echo()]) as hub:
        people = Principals(hub, names=NAMES)
        flood = {asyncio.create_task(people.at(hub, NAMES[number % 2]).call(WAIT)) for number in range(24)}
        refused: set[asyncio.Task[Any]] = set()
        while len(refused) < 20:
            done, flood = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        for each in refused:
            failure = await failed(each)
            assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert failure.metadata == {"max_in_flight": "8", "yours": "4"}
        for _ in range(20):
            assert (await people.at(hub, "globex-bot").call(ECHO, {"text": "in time"})).ok
        assert waits.running == len(flood) == 4
        waits.let_go.set()
        assert all([(await each).ok for each in flood])


async def test_a_quota_and_a_metric_by_tenant_are_one_for_all_its_principals(tmp_path: Path) -> None:
    settings = {**BY_KEY, "metrics": {"max_principals": 1}}
    async with running_hub(tmp_path, policy=LIMITED, settings=settings, tools=[Echo()]) as hub:
        people = Principals(hub, names=NAMES)
        answers = [await people.at(hub, NAMES[number % 2]).call(ECHO) for number in range(4)]
        assert [answer.ok for answer in answers] == [True, True, True, False]
        assert answers[3].error.kind == error_pb2.ERROR_KIND_RATE_LIMITED
        assert (await people.at(hub, "globex-bot").call(ECHO)).ok
        shown = hub.hub.observing.metrics.exposition().decode()
        counted = [line for line in shown.splitlines() if line.startswith("toolhub_tool_invocations_total{")]
        assert sorted(counted) == [
            f'toolhub_tool_invocations_total{{ok="false",principal="tenant acme",tool="{ECHO}"}} 1.0',
            f'toolhub_tool_invocations_total{{ok="true",principal="other",tool="{ECHO}"}} 1.0',
            f'toolhub_tool_invocations_total{{ok="true",principal="tenant acme",tool="{ECHO}"}} 3.0',
        ]
