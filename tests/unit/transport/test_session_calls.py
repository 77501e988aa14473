from __future__ import annotations

import asyncio

from toolhub.v1 import call_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.result import Chunk, Progress, ToolResult
from toolhub_service.transport.session_calls import (
    EVENTS_MAX,
    HELD_MAX_BYTES,
    MESSAGE_MAX_BYTES,
    SendQueue,
    SessionedCall,
)
from toolhub_service.transport.session_limits import ARGS_MAX_BYTES, Limiter, SharedLimit


class Mailbox:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.queue = SendQueue(lambda call: self.sent.append(call.name))

    def call(self, name: str) -> SessionedCall:
        request = pb.SessionCall(call_id=name, intent=call_pb2.ToolIntent(tool="a/b.c"))
        return SessionedCall(request, self.queue)

    async def read(self) -> list[pb.SessionEvent]:
        data = await self.queue.next_message()
        assert data is not None
        return list(pb.InvokeSessionResponse.FromString(data).events)

    async def read_all(self) -> list[list[pb.SessionEvent]]:
        self.queue.close()
        messages = []
        while (data := await self.queue.next_message()) is not None:
            messages.append(list(pb.InvokeSessionResponse.FromString(data).events))
        return messages


def result(text: str = "") -> ToolResult:
    return ToolResult(ok=True, call_id="call", tool="a/b.c", value={"text": text})


async def test_results_that_are_ready_at_once_leave_in_one_message() -> None:
    post = Mailbox()
    for name in ("a", "b"):
        call = post.call(name)
        call.progress(Progress(1))
        call.answer(result())
    assert [(event.call_id, event.WhichOneof("event")) for event in await post.read()] == [
        ("a", "progress"),
        ("a", "result"),
        ("b", "progress"),
        ("b", "result"),
    ]
    assert post.sent == ["a", "b"]


async def test_a_call_is_reported_as_sent_only_with_its_result() -> None:
    post = Mailbox()
    call = post.call("a")
    call.chunk(Chunk(b"x"))
    await post.read()
    assert post.sent == []
    call.answer(result())
    await post.read()
    assert post.sent == ["a"]


async def test_reader_that_waits_is_woken() -> None:
    post = Mailbox()
    reading = asyncio.create_task(post.read())
    await asyncio.sleep(0)
    post.call("a").answer(result())
    assert len(await reading) == 1


async def test_messages_stay_below_their_bound_and_lose_nothing() -> None:
    post = Mailbox()
    for number in range(40):
        post.call(str(number)).answer(result("x" * 100_000))
    messages = await post.read_all()
    assert [event.call_id for message in messages for event in message] == [str(number) for number in range(40)]
    assert len(messages) > 3
    assert all(sum(event.ByteSize() for event in message) <= MESSAGE_MAX_BYTES for message in messages)
    assert post.sent == [str(number) for number in range(40)]


async def test_event_beyond_the_bound_goes_alone() -> None:
    post = Mailbox()
    post.call("a").answer(result())
    post.call("b").answer(result("x" * 2 * MESSAGE_MAX_BYTES))
    post.call("c").answer(result())
    assert [[event.call_id for event in message] for message in await post.read_all()] == [["a"], ["b"], ["c"]]


async def test_progress_that_nobody_read_yet_is_replaced_by_newer() -> None:
    post = Mailbox()
    call = post.call("a")
    for step in range(1_000):
        call.progress(Progress(step))
    (event,) = await post.read()
    assert event.progress.step == 999


async def test_reader_that_is_too_slow_loses_the_oldest_output_and_never_the_result() -> None:
    post = Mailbox()
    call = post.call("a")
    for number in range(10_000):
        call.chunk(Chunk(str(number).encode()))
    call.answer(result())
    events = [event for message in await post.read_all() for event in message]
    assert [event.chunk.data for event in events[:-1]] == [
        str(number).encode() for number in range(10_000 - EVENTS_MAX, 10_000)
    ]
    assert events[-1].result.ok


async def test_output_of_all_calls_together_is_bounded_in_bytes() -> None:
    post = Mailbox()
    calls = [post.call(str(number)) for number in range(8)]
    for _ in range(100):
        for call in calls:
            call.chunk(Chunk(b"x" * 50_000))
    held = sum(len(event.chunk.data) for message in await post.read_all() for event in message)
    assert held <= HELD_MAX_BYTES + len(calls) * 50_000
    assert held > HELD_MAX_BYTES // 2


async def test_results_that_wait_fill_the_outbox_until_they_are_read() -> None:
    post = Mailbox()
    for number in range(5):
        post.call(str(number)).answer(result("x" * MESSAGE_MAX_BYTES))
    assert post.queue.hold(0)
    await post.read_all()
    assert not post.queue.hold(0)


async def test_closed_outbox_ends_after_what_waits() -> None:
    post = Mailbox()
    post.call("a").answer(result())
    assert len(await post.read_all()) == 1
    assert await post.queue.next_message() is None


def a_limiter(shared: SharedLimit, most: int = 4) -> Limiter:
    return Limiter(shared, most, SendQueue(lambda _: None))


def test_a_session_is_bound_by_number_and_by_bytes() -> None:
    limiter = a_limiter(SharedLimit(100))
    for _ in range(4):
        assert limiter.has_room()
        limiter.take(1)
    assert not limiter.has_room()
    limiter.give_back(1)
    assert limiter.has_room()
    limiter.take(ARGS_MAX_BYTES)
    limiter.give_back(1)
    assert not limiter.has_room()
    limiter.give_back(ARGS_MAX_BYTES)
    assert limiter.has_room()


def test_answers_that_nobody_reads_leave_no_room_even_for_a_first_call() -> None:
    queue = SendQueue(lambda _: None)
    limiter = Limiter(SharedLimit(1), 4, queue)
    queue.hold(HELD_MAX_BYTES + 1)
    assert not limiter.has_room()


def test_every_session_has_room_for_one_call_beside_any_others() -> None:
    shared = SharedLimit(2)
    busy, late = a_limiter(shared), a_limiter(shared)
    for _ in range(3):
        busy.take(0)
    assert shared.count == shared.most
    assert not busy.has_room()
    assert late.has_room()
    late.take(0)
    assert not late.has_room()
    assert shared.count == 2


async def test_the_longest_waiting_session_goes_on_first_and_a_closed_one_frees_its_calls() -> None:
    shared = SharedLimit(1)
    limiters = [a_limiter(shared) for _ in range(4)]
    for limiter in limiters:
        limiter.take(0)
    limiters[0].take(0)
    went_on: list[int] = []

    async def waiting(at: int) -> None:
        await limiters[at].wait()
        went_on.append(at)
        limiters[at].take(0)

    tasks = []
    for at in (2, 1, 3):
        tasks.append(asyncio.create_task(waiting(at)))
        await asyncio.sleep(0)
    for ends in (0, 2, 1):
        limiters[ends].give_back(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert went_on == [2, 1, 3]
    assert shared.count == 1
    limiters[3].close()
    limiters[3].close()
    assert shared.count == 0
