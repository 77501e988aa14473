"""The ComfyUI adapter, source and job keep what every adapter, source and remote job promises, on both versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.comfyui import FakeComfy, How, Op
from tests.ports import adapter_suite
from tests.ports.adapter_suite import AdapterSuite, Prepared
from tests.ports.remote_job_suite import MINTED, RemoteFault, RemoteJobSuite
from tests.ports.tool_source_suite import ToolSourceSuite
from tests.unit.adapters.comfyui import comfy_harness as harness_module
from tests.unit.adapters.comfyui.comfy_harness import ComfyHarness, comfy_harness
from toolhub_service.domain.call import GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.job_ports import RemoteJob
from toolhub_service.domain.ports import NOTHING_FIXED, EventSink, FixedTerms
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import ToolSource
from toolhub_service.domain.tool import ToolSpec

BOTH = pytest.mark.parametrize("version", ["0.33.0", "0.3.64"])
LOOKS = (Op.JOB, Op.HISTORY, Op.QUEUE)
"""How a prompt is looked at, whichever version."""
SCRIPT: dict[RemoteFault, list[tuple[Op, How, int]]] = {
    RemoteFault.START_ANSWER_LOST: [(Op.SUBMIT, How.LOSE_ANSWER, 1)],
    RemoteFault.START_LOST: [(Op.SUBMIT, How.DROP, 1)],
    RemoteFault.FIND_BROKEN: [(op, How.DROP, -1) for op in LOOKS],
    RemoteFault.FOLLOW_CUT: [(op, How.CUT, 1) for op in LOOKS],
    RemoteFault.FORGOTTEN: [(op, How.HIDE, -1) for op in LOOKS],
    RemoteFault.STOP_BROKEN: [(Op.CANCEL, How.DROP, 1), (Op.DELETE, How.DROP, 1)],
    RemoteFault.COLLECT_CUT: [(Op.VIEW, How.CUT, 1)],
}


class PromptHarness:
    """Implements `RemoteHarness`: one prompt that is held in its first blur."""

    def __init__(self, harness: ComfyHarness) -> None:
        self.call: GrantedCall = harness.call("blur")
        self.remote: RemoteJob = harness.parts.job
        self._comfy: FakeComfy = harness.comfy
        self._comfy.hold("ImageBlur")

    @property
    def effects(self) -> int:
        return len(self._comfy.submitted)

    def meet(self, trouble: RemoteFault) -> None:
        if trouble is RemoteFault.START_REFUSED:
            self._comfy.remove_class("ImageBlur")
        if trouble is RemoteFault.RESULT_GONE:
            self._comfy.clear_history()
        for op, how, times in SCRIPT.get(trouble, []):
            self._comfy.fault(op, how, times)

    def let_go(self) -> None:
        self._comfy.release()

    async def let_go_once_interrupted(self) -> None:
        """A node is not interrupted, only what follows it; and what is asked before the first begins is forgotten."""
        await self._comfy.until_held("ImageBlur")
        await self._comfy.until(lambda: self._comfy.state.interrupted)
        self._comfy.release()


@BOTH
class TestPrompt(RemoteJobSuite):
    @pytest.fixture
    async def harness(self, tmp_path: Path, version: str) -> AsyncIterator[PromptHarness]:
        async with comfy_harness(tmp_path, version) as harness:
            prompts = PromptHarness(harness)
            yield prompts
            prompts.let_go()

    async def test_a_remote_side_that_cannot_stop_is_reported(self, harness: Any) -> None:
        """There is none: every ComfyUI stops a prompt on request."""
        mark = await harness.remote.start(harness.call, MINTED)
        assert await harness.remote.cancel(harness.call, mark)

    async def test_a_stopped_job_ends_and_is_collected_as_cancelled(self, harness: Any) -> None:
        letting_go = asyncio.create_task(harness.let_go_once_interrupted())
        await super().test_a_stopped_job_ends_and_is_collected_as_cancelled(harness)
        letting_go.cancel()
        assert harness.effects == 1


@BOTH
class TestSource(ToolSourceSuite):
    @pytest.fixture
    async def source(self, tmp_path: Path, version: str) -> AsyncIterator[ToolSource]:
        async with comfy_harness(tmp_path, version) as harness:
            yield harness.source


class JobsOnly:
    """The adapter as jobs see it: each call has a job of its own."""

    def __init__(self, harness: ComfyHarness, waits: ToolSpec, stopped: asyncio.Event) -> None:
        self.kind = harness.adapter.kind
        self._adapter = harness.adapter
        self._waits = waits
        self._stopped = stopped

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        asked = call.call._replace(job_id=f"{call.spec.resource_id.partition('@')[0]}-{call.call.call_id}")
        try:
            return await self._adapter.execute(call._replace(planned=call.planned._replace(call=asked)), sink)
        finally:
            if call.spec == self._waits:
                self._stopped.set()

    def effects(self, call: GrantedCall) -> Sequence[str]:
        return self._adapter.effects(call)

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return await self._adapter.preconditions(planned)

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return self._adapter.has_side_effects(planned)

    def upstream(self, planned: PlannedCall) -> str:
        return self._adapter.upstream(planned)

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return NOTHING_FIXED

    def resumes(self, spec: ToolSpec) -> bool:
        return self._adapter.resumes(spec)


class TestAdapter(AdapterSuite):
    @pytest.fixture
    async def prepared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Prepared]:
        def breaking(text: str) -> str:
            if adapter_suite.SECRET in text:
                raise RuntimeError(text)
            return text

        monkeypatch.setattr(harness_module, "redact", breaking)
        async with comfy_harness(tmp_path, "0.33.0", "0.33.0") as harness:
            started, let_go, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
            for server in harness.servers:
                server.hold("KSampler")
                server.fail("ImageBlur", "it is broken", times=50)
            watching = [asyncio.create_task(_server_states(server, started, let_go)) for server in harness.servers]
            spec = {name: definition.spec for name, definition in harness.definitions.items()}
            adapter = JobsOnly(harness, spec["paint"], stopped)
            yield Prepared(adapter, spec["note"], spec["blur"], spec["note"], spec["paint"], started, let_go, stopped)
            for server, task in zip(harness.servers, watching, strict=True):
                server.release()
                task.cancel()
            await asyncio.wait(watching)


async def _server_states(server: FakeComfy, started: asyncio.Event, let_go: asyncio.Event) -> None:
    await server.pulse.until(lambda: server.pace.held is not None, timeout_s=None)
    started.set()
    await let_go.wait()
    server.release()
