"""What every adapter must do. A test class inherits `AdapterSuite` and provides an adapter with each behaviour."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass, field

import pytest

from tests.overtaken import overtaken
from toolhub_service.domain.call import Call, ExecContext, GrantedCall, PlannedCall, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Adapter
from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict

SECRET = "hunter2-canary"
"""Stands in the text of the unexpected error; it must not be seen outside."""
WITHIN_S = 60.0
"""No measure: an adapter that hangs fails by name."""


@dataclass(slots=True)
class RecordingSink:
    """Keeps what an execution reports."""

    progresses: list[Progress] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)

    def chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


class _SilentSink:
    def progress(self, progress: Progress) -> None: ...

    def chunk(self, chunk: Chunk) -> None: ...


SILENT = _SilentSink()


def granted(
    spec: ToolSpec,
    args: JsonObject | None = None,
    *,
    call_id: str = "call-1",
    principal: str = "tester",
    context: ExecContext | None = None,
    deadline_s: float = float("inf"),
) -> GrantedCall:
    """A call as it reaches an adapter."""
    asked = Call(
        call_id=call_id,
        tool=spec.name,
        args=args or {},
        principal=Principal(id=principal),
        context=context or ExecContext(request_id="request-1"),
    )
    verdict = Verdict(effect=Effect.ALLOW, policy_revision="test", rule_id="test", reason="test")
    return GrantedCall(PlannedCall(asked, spec, args or {}), verdict, deadline_s=deadline_s)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An adapter and what it can be asked."""

    adapter: Adapter
    echo: ToolSpec
    """Answers `{"text": …}` with a result that contains the text."""
    refuses: ToolSpec
    """Fails with a typed ToolFailure of kind NOT_FOUND, UPSTREAM_ERROR or EXECUTION_ERROR."""
    crashes: ToolSpec
    """Meets an error nobody foresaw, whose text contains the argument `text`."""
    waits: ToolSpec
    """Waits until `let_go` is set."""
    started: asyncio.Event
    let_go: asyncio.Event
    stopped: asyncio.Event
    """Set when the work of `waits` has ended, in whatever way."""


class AdapterSuite:
    """Behaviours of the Adapter port."""

    @pytest.fixture
    @abstractmethod
    def prepared(self) -> Prepared:
        raise NotImplementedError

    async def test_a_call_that_succeeds_brings_back_its_value(self, prepared: Prepared) -> None:
        outcome = await prepared.adapter.execute(granted(prepared.echo, {"text": "hello"}), SILENT)
        assert "hello" in _texts(outcome.value)

    async def test_every_tool_is_of_the_adapters_kind(self, prepared: Prepared) -> None:
        tools = (prepared.echo, prepared.refuses, prepared.crashes, prepared.waits)
        assert {tool.kind for tool in tools} == {prepared.adapter.kind}

    async def test_a_failure_is_typed_and_states_the_remedy(self, prepared: Prepared) -> None:
        with pytest.raises(ToolFailure) as caught:
            await prepared.adapter.execute(granted(prepared.refuses), SILENT)
        assert caught.value.error.kind in {ErrorKind.NOT_FOUND, ErrorKind.UPSTREAM_ERROR, ErrorKind.EXECUTION_ERROR}
        assert len(caught.value.error.message) > 10

    async def test_an_unforeseen_error_is_internal_and_keeps_its_text_to_itself(self, prepared: Prepared) -> None:
        with pytest.raises(ToolFailure) as caught:
            await prepared.adapter.execute(granted(prepared.crashes, {"text": SECRET}), SILENT)
        assert caught.value.error.kind is ErrorKind.INTERNAL
        assert SECRET not in repr(caught.value.error)
        assert caught.value.__cause__ is not None

    async def test_cancelling_stops_the_work_and_is_passed_on(self, prepared: Prepared) -> None:
        running = asyncio.create_task(prepared.adapter.execute(granted(prepared.waits), SILENT))
        await asyncio.wait_for(prepared.started.wait(), WITHIN_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(prepared.stopped.wait(), WITHIN_S)

    async def test_no_work_is_left_when_the_deadline_has_passed(self, prepared: Prepared) -> None:
        async def late(timeout_s: float) -> None:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            # An id of its own: some upstreams answer a repeated one with the work that was ended before.
            call = granted(prepared.waits, deadline_s=deadline_s, call_id=f"late-{timeout_s * 1_000:.0f}")
            with pytest.raises((TimeoutError, ToolFailure)):
                async with asyncio.timeout_at(deadline_s):
                    await prepared.adapter.execute(call, SILENT)

        await overtaken(late, lambda _: prepared.started.is_set(), first_s=0.05)
        await asyncio.wait_for(prepared.stopped.wait(), WITHIN_S)

    async def test_calls_at_the_same_time_do_not_mix(self, prepared: Prepared) -> None:
        calls = [granted(prepared.echo, {"text": f"text-{n}"}, call_id=f"call-{n}") for n in range(32)]
        outcomes = await asyncio.gather(*(prepared.adapter.execute(call, SILENT) for call in calls))
        for number, outcome in enumerate(outcomes):
            assert f"text-{number}" in _texts(outcome.value)

    async def test_a_waiting_call_delays_no_other(self, prepared: Prepared) -> None:
        waiting = asyncio.create_task(prepared.adapter.execute(granted(prepared.waits), SILENT))
        await asyncio.wait_for(prepared.started.wait(), WITHIN_S)
        outcome = await asyncio.wait_for(
            prepared.adapter.execute(granted(prepared.echo, {"text": "x"}), SILENT), WITHIN_S
        )
        prepared.let_go.set()
        await asyncio.wait_for(waiting, WITHIN_S)
        assert "x" in _texts(outcome.value)

    async def test_an_upstream_is_named_for_every_call(self, prepared: Prepared) -> None:
        for tool in (prepared.echo, prepared.waits):
            assert prepared.adapter.upstream(granted(tool, {"text": "x"}).planned)

    async def test_effects_are_sentences(self, prepared: Prepared) -> None:
        assert all(isinstance(effect, str) for effect in prepared.adapter.effects(granted(prepared.echo)))

    async def test_a_read_only_tool_never_has_side_effects(self, prepared: Prepared) -> None:
        if prepared.echo.annotations.read_only:
            assert prepared.adapter.has_side_effects(granted(prepared.echo).planned) is False


def _texts(value: JsonValue) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for entry in value.values() for text in _texts(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in _texts(entry)]
    return []
