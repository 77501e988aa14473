"""A session with calls that end when the test releases them: order, concurrency, reading and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from toolhub.v1 import call_pb2, error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, refuse
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Chunk, Plan, Progress, ToolResult
from toolhub_service.runtime.failures import cancelled_error
from toolhub_service.transport.convert.call import MODES, to_call
from toolhub_service.transport.session import Session, SessionTerms, result_of_refusal
from toolhub_service.transport.session_limits import SharedLimit


class FakeJournal:
    """A `Journal` that is behind while the test wants it, and catches up when released."""

    def __init__(self) -> None:
        self.behind = False
        self.caught_up = asyncio.Event()
        self.broken = False

    def is_behind(self) -> bool:
        return self.behind

    async def flush(self) -> None:
        if self.broken:
            raise refuse(ErrorKind.IO_ERROR, "The disk is full.")
        await self.caught_up.wait()
        self.behind = False


class SessionHarness:
    """A session, its caller, and the runtime behind it: `quick` answers at once, every other tool when it is let go."""

    def __init__(self, max_in_flight: int = 4, max_of_all: int = 1_000) -> None:
        self.inbox: asyncio.Queue[pb.InvokeSessionRequest | None] = asyncio.Queue()
        self.read = 0
        self.begun: list[str] = []
        self.tasks: list[asyncio.Task[object] | None] = []
        self.let_go: dict[str, asyncio.Event] = {}
        self.stopped: list[str] = []
        self.journal = FakeJournal()
        terms = SessionTerms(
            self,
            self.begin,
            self.check,
            lambda call: result_of_refusal(call.call_id, call.tool, cancelled_error(), 1),
            self.journal,
            SharedLimit(max_of_all),
            Turns(),
            "local",
            max_in_flight,
        )
        self.session = Session(self.requests(), terms)
        self.session.begin()

    async def requests(self) -> AsyncIterator[pb.InvokeSessionRequest]:
        while (message := await self.inbox.get()) is not None:
            self.read += 1
            yield message

    def check(self, message: pb.InvokeSessionRequest) -> dict[int, ToolResult]:
        return {
            place: result_of_refusal(
                f"hub-{call.call_id}", call.intent.tool, ToolError(ErrorKind.INVALID_INPUT, "It is malformed."), 1
            )
            for place, call in enumerate(message.calls)
            if call.intent.tool == "malformed"
        }

    def begin(self, request: pb.SessionCall) -> Call:
        mode = MODES[request.mode]
        return to_call(request, Principal("local"), call_id=f"hub-{request.call_id}", deadline_s=None, mode=mode)

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult | Plan:
        if call.args_error is not None:
            return ToolResult(ok=False, call_id=call.call_id, tool=call.tool, error=call.args_error)
        self.begun.append(call.tool)
        self.tasks.append(asyncio.current_task())
        if call.tool == "crash":
            raise ValueError("a defect")
        if call.tool != "quick":
            sink.progress(Progress(1))
            try:
                await self.let_go.setdefault(call.tool, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.stopped.append(call.tool)
                if call.tool != "stubborn":
                    raise
            sink.chunk(Chunk(b"done"))
        return ToolResult(ok=True, call_id=call.call_id, tool=call.tool)

    def send(self, *calls: str, cancel: tuple[str, ...] = ()) -> None:
        """Calls as `name` (of a tool called likewise) or `name=tool`."""
        message = pb.InvokeSessionRequest(cancel_call_ids=cancel)
        for call in calls:
            name, _, tool = call.partition("=")
            message.calls.add(call_id=name, intent=call_pb2.ToolIntent(tool=tool or name))
        self.inbox.put_nowait(message)

    def close(self) -> None:
        self.inbox.put_nowait(None)

    async def message(self) -> list[pb.SessionEvent] | None:
        data = await self.session.next_message()
        return None if data is None else list(pb.InvokeSessionResponse.FromString(data).events)

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1_000):
            if holds():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")

    async def results(self, count: int) -> dict[str, pb.SessionEvent]:
        found: dict[str, pb.SessionEvent] = {}
        while len(found) < count:
            events = await self.message()
            assert events is not None
            for event in events:
                assert event.call_id not in found, "nothing comes after the result"
                if event.WhichOneof("event") == "result":
                    found[event.call_id] = event
        return found


@pytest.fixture
async def harness() -> AsyncIterator[SessionHarness]:
    harness = SessionHarness()
    yield harness
    await harness.session.end()


def kind(event: pb.SessionEvent) -> int:
    return event.result.error.kind


async def test_calls_that_never_wait_are_run_by_one_task_and_answered_in_one_message(harness: SessionHarness) -> None:
    harness.send("a=quick", "b=quick", "c=quick")
    events = await harness.message()
    assert events is not None
    assert [event.call_id for event in events] == ["a", "b", "c"]
    assert [event.result.call_id for event in events] == ["hub-a", "hub-b", "hub-c"]
    assert len(set(harness.tasks)) == 1


async def test_call_that_waits_delays_neither_the_rest_of_its_message_nor_reading(harness: SessionHarness) -> None:
    harness.send("slow", "a=quick")
    harness.send("b=quick")
    assert set(await harness.results(2)) == {"a", "b"}
    harness.let_go["slow"].set()
    assert set(await harness.results(1)) == {"slow"}


async def test_calls_begin_in_their_order_and_wait_at_the_same_time(harness: SessionHarness) -> None:
    harness.send("x", "y", "z")
    await harness.until(lambda: len(harness.begun) == 3)
    assert harness.begun == ["x", "y", "z"]
    assert len(set(harness.tasks)) == 3
    for name in ("z", "x", "y"):
        harness.let_go[name].set()
        assert set(await harness.results(1)) == {name}


async def test_events_of_a_call_keep_their_order_and_end_with_the_result(harness: SessionHarness) -> None:
    harness.send("slow")
    first = await harness.message()
    assert first is not None
    assert [event.WhichOneof("event") for event in first] == ["progress"]
    harness.let_go["slow"].set()
    rest = await harness.message()
    assert rest is not None
    assert [event.WhichOneof("event") for event in rest] == ["chunk", "result"]


async def test_no_more_than_the_bound_is_begun_and_nothing_more_is_read(harness: SessionHarness) -> None:
    harness.send(*[f"w{number}" for number in range(6)])
    harness.send("late=quick")
    await harness.until(lambda: len(harness.begun) == 4)
    await harness.until(lambda: harness.read == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.begun == ["w0", "w1", "w2", "w3"]
    assert harness.read == 1
    harness.let_go["w1"].set()
    await harness.results(1)
    await harness.until(lambda: len(harness.begun) == 5)
    assert harness.read == 1
    harness.let_go["w0"].set()
    await harness.results(1)
    await harness.until(lambda: harness.read == 2)
    harness.let_go["w2"].set()
    assert set(await harness.results(2)) == {"w2", "late"}


async def test_caller_within_its_bound_can_always_cancel(harness: SessionHarness) -> None:
    harness.send("w0", "w1", "w2", "w3")
    harness.send(cancel=("w2",))
    found = await harness.results(1)
    assert kind(found["w2"]) == error_pb2.ERROR_KIND_CANCELLED
    assert harness.stopped == ["w2"]


async def test_cancelled_call_is_answered_once_and_the_others_go_on(harness: SessionHarness) -> None:
    harness.send("x", "y")
    await harness.until(lambda: len(harness.begun) == 2)
    harness.send(cancel=("x", "x", "unknown"))
    found = await harness.results(1)
    assert found["x"].result.error.message == "The caller cancelled the call."
    assert found["x"].result.evidence
    harness.let_go["y"].set()
    assert (await harness.results(1))["y"].result.ok
    harness.close()
    assert await harness.message() is None


async def test_call_cancelled_before_it_began_never_runs_and_is_answered(harness: SessionHarness) -> None:
    harness.send("w0", "w1", "w2", "w3", "w4", cancel=("w4",))
    await harness.until(lambda: len(harness.begun) == 4)
    harness.let_go["w0"].set()
    found = await harness.results(2)
    assert found["w4"].result.error.message == "The caller cancelled the call."
    assert "w4" not in harness.begun


async def test_call_that_ends_well_in_spite_of_being_cancelled_keeps_its_result(harness: SessionHarness) -> None:
    harness.send("stubborn")
    await harness.until(lambda: len(harness.begun) == 1)
    harness.send(cancel=("stubborn",))
    assert (await harness.results(1))["stubborn"].result.ok
    harness.send("a=quick")
    assert set(await harness.results(1)) == {"a"}


async def test_finished_call_frees_its_name(harness: SessionHarness) -> None:
    for _ in range(3):
        harness.send("a=quick")
        assert (await harness.results(1))["a"].result.ok


async def test_second_call_of_a_name_in_flight_is_refused_and_the_first_goes_on(harness: SessionHarness) -> None:
    harness.send("x", "x=quick")
    refused = (await harness.results(1))[""].result
    assert not refused.ok
    assert "call_id" in refused.error.message
    assert refused.error.details["call_id"] == "x"
    harness.send(cancel=())
    harness.let_go["x"].set()
    assert (await harness.results(1))["x"].result.ok
    assert harness.begun == ["x"]


async def test_half_close_lets_what_is_in_flight_finish(harness: SessionHarness) -> None:
    harness.send("x", "a=quick")
    harness.close()
    await harness.results(1)
    harness.let_go["x"].set()
    assert set(await harness.results(1)) == {"x"}
    assert await harness.message() is None
    assert not harness.session.is_cut_short


async def test_session_without_a_call_ends_with_its_caller(harness: SessionHarness) -> None:
    harness.close()
    assert await harness.message() is None


async def test_end_stops_everything_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    harness = SessionHarness()
    harness.send("x", "y", "z")
    await harness.until(lambda: len(harness.begun) == 3)
    await harness.session.end()
    assert sorted(harness.stopped) == ["x", "y", "z"]
    assert asyncio.all_tasks() == before


async def test_a_session_asked_to_stop_reading_answers_what_it_has_read_and_ends(harness: SessionHarness) -> None:
    harness.send("x")
    await harness.until(lambda: len(harness.begun) == 1)
    harness.session.stop_reading()
    harness.send("late=quick")
    harness.let_go["x"].set()
    assert set(await harness.results(1)) == {"x"}
    assert await harness.message() is None
    assert harness.session.is_cut_short
    assert harness.read == 0 or "quick" not in harness.begun


async def test_an_idle_session_that_is_asked_to_stop_reading_ends_at_once(harness: SessionHarness) -> None:
    await asyncio.sleep(0)
    harness.session.stop_reading()
    assert await harness.message() is None


async def test_defect_ends_the_session_after_what_was_answered(harness: SessionHarness) -> None:
    harness.send("a=quick", "b=crash", "c=quick")
    assert set(await harness.results(1)) == {"a"}
    with pytest.raises(ValueError, match="a defect"):
        await harness.message()


async def test_large_message_lets_others_have_their_turn() -> None:
    harness = SessionHarness(max_in_flight=1_000)
    turns: list[int] = []

    async def other() -> None:
        while len(harness.begun) < 200:
            turns.append(len(harness.begun))
            await asyncio.sleep(0)

    harness.send(*[f"c{number}=quick" for number in range(200)])
    await asyncio.gather(other(), harness.results(200))
    assert max(after - before for before, after in pairwise(turns)) <= 64
    await harness.session.end()


async def test_reader_that_never_reads_delays_the_caller_and_nothing_is_lost() -> None:
    harness = SessionHarness(max_in_flight=8)
    for number in range(20):
        harness.send(f"c{number}=quick", f"d{number}=quick")
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(harness.begun) == 8
    assert harness.read <= 5
    assert len(await harness.results(40)) == 40
    await harness.session.end()


async def test_session_waits_for_a_log_that_has_fallen_behind_before_it_begins_more(harness: SessionHarness) -> None:
    harness.journal.behind = True
    harness.send("a=quick")
    await harness.until(lambda: harness.read == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.begun == []
    harness.journal.caught_up.set()
    assert set(await harness.results(1)) == {"a"}


async def test_broken_log_is_left_to_refuse_each_call_by_itself(harness: SessionHarness) -> None:
    harness.journal.behind = harness.journal.broken = True
    harness.send("a=quick")
    assert set(await harness.results(1)) == {"a"}


async def test_malformed_call_is_answered_in_its_turn_and_never_begins(harness: SessionHarness) -> None:
    harness.send("a=quick", "b=malformed", "c=quick")
    events = await harness.message()
    assert events is not None
    assert [(event.call_id, event.result.ok) for event in events] == [("a", True), ("b", False), ("c", True)]
    assert harness.begun == ["quick", "quick"]


async def test_malformed_calls_that_nobody_reads_the_answers_of_stop_the_reading_too() -> None:
    harness = SessionHarness(max_in_flight=8)
    for number in range(50):
        harness.send(f"c{number}=malformed", f"d{number}=malformed")
    for _ in range(200):
        await asyncio.sleep(0)
    assert harness.read <= 5
    assert len(await harness.results(100)) == 100
    await harness.session.end()
