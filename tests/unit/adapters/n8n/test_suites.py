"""The n8n adapter does what every adapter must, its source what sources must, and its jobs what remote jobs must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.n8n import FOREVER, FakeN8n, How
from tests.ports.adapter_suite import AdapterSuite, Prepared
from tests.ports.remote_job_suite import RemoteFault, RemoteJobSuite
from tests.ports.tool_source_suite import ToolSourceSuite
from tests.unit.adapters.n8n.flows import dedupes
from tests.unit.adapters.n8n.n8n_harness import JOB_ID, QUICK_MISSING, SYNC, LoopClock, N8nHarness, n8n_harness, redact
from toolhub_service.adapters.n8n.calling import WorkflowCaller
from toolhub_service.adapters.n8n.job import N8nJob
from toolhub_service.adapters.n8n.kind import N8nDiscovery, N8nWorkflow
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.source import ToolSource


class ReleasesWorkflow(asyncio.Event):
    """Lets the workflow go on which n8n holds."""

    def __init__(self, n8n: FakeN8n) -> None:
        super().__init__()
        self._n8n = n8n

    def set(self) -> None:
        super().set()
        for execution in self._n8n.executions:
            self._n8n.release(execution.id)


class CrashingCaller(WorkflowCaller):
    """Breaks over what the workflow `crashes` answers."""

    def _check_result(self, workflow: Any, call: GrantedCall, value: Any, known: Any) -> None:
        if call.spec.resource_id == "crashes":
            raise RuntimeError(str(value))
        super()._check_result(workflow, call, value, known)


class TestN8nAdapter(AdapterSuite):
    @pytest.fixture
    async def prepared(self) -> AsyncIterator[Prepared]:
        named = {"echo": SYNC, "breaks": SYNC, "slow": SYNC, "crashes": N8nWorkflow(webhook="echo")}
        async with n8n_harness(named, time_scale=None) as harness:
            harness.adapter._caller = CrashingCaller(redact, LoopClock(), pause_s=0.002)
            specs = {own: made.spec for own, made in (await harness.definitions()).items()}
            started, stopped, let_go = asyncio.Event(), asyncio.Event(), ReleasesWorkflow(harness.n8n)
            watch = asyncio.create_task(_watch(harness.n8n, started, stopped))
            yield Prepared(
                harness.adapter,
                specs["echo"],
                specs["breaks"],
                specs["crashes"],
                specs["slow"],
                started,
                let_go,
                stopped,
            )
            watch.cancel()


async def _watch(n8n: FakeN8n, started: asyncio.Event, stopped: asyncio.Event) -> None:
    began = await n8n.began("slow")
    started.set()
    await n8n.ended(began.id)
    stopped.set()


class TestN8nToolSource(ToolSourceSuite):
    @pytest.fixture
    async def source(self) -> AsyncIterator[ToolSource]:
        async with n8n_harness({"named": N8nWorkflow(webhook="echo")}, discover=N8nDiscovery()) as harness:
            yield harness.source


class TestConfiguredSource(ToolSourceSuite):
    """Without an API."""

    @pytest.fixture
    async def source(self) -> AsyncIterator[ToolSource]:
        async with n8n_harness({"named": N8nWorkflow(webhook="echo")}, with_api=False) as harness:
            yield harness.source


class N8nSuiteHarness:
    """Implements `RemoteHarness`. The workflow knows its keys, so that one that is not there may be started again."""

    def __init__(self, harness: N8nHarness, call: GrantedCall) -> None:
        self.remote = N8nJob(harness.server, harness.adapter._caller, QUICK_MISSING)
        self.call = call
        self._n8n = harness.n8n

    @property
    def effects(self) -> int:
        return self._n8n.starts("once")

    def meet(self, trouble: RemoteFault) -> None:
        n8n, one = self._n8n, "/api/v1/executions/*"
        match trouble:
            case RemoteFault.START_REFUSED:
                n8n.fails("/webhook/*", How.BUSY)
            case RemoteFault.START_ANSWER_LOST:
                n8n.fails("/webhook/*", How.LOSE_ANSWER)
            case RemoteFault.START_LOST:
                n8n.fails("/webhook/*", How.DROP)
            case RemoteFault.FIND_BROKEN:
                n8n.fails("/api/v1/executions", How.DROP, times=FOREVER)
            case RemoteFault.FOLLOW_CUT | RemoteFault.COLLECT_CUT:
                n8n.fails(one, How.CUT)
            case RemoteFault.FORGOTTEN | RemoteFault.RESULT_GONE:
                n8n.executions.forget()
            case RemoteFault.STOP_BROKEN:
                n8n.fails("/api/v1/executions/*/stop", How.DROP)
            case RemoteFault.STOP_IMPOSSIBLE:
                n8n.fails("/api/v1/executions/*/stop", How.NO_ROUTE, times=FOREVER)

    def let_go(self) -> None:
        for execution in self._n8n.executions:
            self._n8n.release(execution.id)


class TestN8nJobs(RemoteJobSuite):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[N8nSuiteHarness]:
        terms = N8nWorkflow(mode="async", deduplicates=True)
        async with n8n_harness({"once": terms}, flows=[dedupes("once")], time_scale=None) as harness:
            yield N8nSuiteHarness(harness, await harness.call("once", {"a": 1}, job_id=JOB_ID))
