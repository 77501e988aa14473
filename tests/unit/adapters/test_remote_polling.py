"""How often a remote side is asked, by one job and by many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

from tests.fakes.clock import FixedRandomness
from tests.fakes.http_remote_job import HttpRemoteJob
from tests.fakes.job_server import JobServer, job_server
from tests.fakes.job_server_faults import How, Op
from tests.fakes.remote_harness import SOON, a_client, remote_call
from tests.ports.remote_job_suite import RemoteFault, RemoteJobSuite
from toolhub_service.adapters.remote_polling import Answer, Poller, PollTerms, Question, Unreachable
from toolhub_service.adapters.upstream import retry_after_s
from toolhub_service.domain.errors.failure import RemoteUnclear

EVEN = FixedRandomness(0.5)
"""No jitter: half way between less and more."""


class HandLoop(asyncio.SelectorEventLoop):
    """A loop whose timers fire at once, in order, and that remembers for how long they were set."""

    def __init__(self) -> None:
        super().__init__()
        self.paused_s: list[float] = []

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        self.paused_s.append(round(delay, 4))
        return super().call_later(0, callback, *args, context=context)


def paused(
    answers: Iterable[Answer[int] | Unreachable], terms: PollTerms, others: int = 0, share: float = 0.5
) -> list[float]:
    """The pauses between the questions that these answers are given to."""
    left = iter(answers)

    async def ask() -> Answer[int]:
        answer = next(left)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    async def main() -> None:
        poller = Poller(FixedRandomness(share), terms)
        poller.asking += others
        _ = [value async for value in poller.poll(ask)]

    with asyncio.Runner(loop_factory=HandLoop) as runner:
        runner.run(main())
        loop = runner.get_loop()
        assert isinstance(loop, HandLoop)
        return loop.paused_s


def answering(*values: int) -> list[Answer[int]]:
    return [Answer(value, is_over=place == len(values) - 1) for place, value in enumerate(values)]


TERMS = PollTerms(first_s=1, growth=2, longest_s=5, per_s=1_000)


def test_intervals_grow_up_to_the_longest() -> None:
    assert paused(answering(1, 1, 1, 1, 1, 1), TERMS) == pytest.approx([1, 2, 4, 5, 5], abs=0.01)


def test_jitter_moves_an_interval_by_its_share() -> None:
    assert paused(answering(1, 1), TERMS, share=0.0) == pytest.approx([0.8], abs=0.01)
    assert paused(answering(1, 1), TERMS, share=1.0) == pytest.approx([1.2], abs=0.01)


def test_a_retry_after_is_added_within_reason() -> None:
    answers: list[Answer[int] | Unreachable] = [Unreachable(30.0), Answer(1, retry_after_s=9_999), Answer(1, True)]
    assert paused(answers, TERMS) == pytest.approx([31, 2 + TERMS.retry_after_max_s], abs=0.01)


def test_many_jobs_together_ask_no_more_often_than_the_endpoint_is_asked_at_all() -> None:
    terms = PollTerms(first_s=1, per_s=50)
    assert paused(answering(1, 1), terms, others=1_999) == [40.0]


async def test_only_differing_statuses_are_reported_and_the_last_ends_it() -> None:
    answers = iter(answering(1, 1, 2, 2, 3))

    async def ask() -> Answer[int]:
        return next(answers)

    poller = Poller(EVEN, PollTerms(first_s=0, longest_s=0, per_s=1e9))
    assert [value async for value in poller.poll(ask)] == [1, 2, 3]
    assert poller.asking == 0


async def test_an_error_that_ends_the_polling_is_passed_on() -> None:
    async def ask() -> Answer[int]:
        raise RemoteUnclear("forgotten")

    poller = Poller(EVEN)
    with pytest.raises(RemoteUnclear):
        await anext(poller.poll(ask))
    assert poller.asking == 0


async def test_an_answer_is_waited_for_through_silence() -> None:
    answers: Iterator[Answer[int] | Unreachable] = iter([Unreachable(), Unreachable(), Answer(7)])

    async def ask() -> Answer[int]:
        answer = next(answers)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    assert await Poller(EVEN, PollTerms(first_s=0, longest_s=0)).answer(ask) == 7


async def test_a_hurried_poller_asks_at_once() -> None:
    asked = asyncio.Event()
    answers = iter(answering(1, 2))

    async def ask() -> Answer[int]:
        asked.set()
        return next(answers)

    poller = Poller(EVEN, PollTerms(first_s=3_600))
    following = asyncio.create_task(_all(poller.poll(ask, key="job-1")))
    await asked.wait()
    poller.poll_now("another")
    poller.poll_now("job-1")
    assert await asyncio.wait_for(following, 60) == [1, 2]
    poller.poll_now("job-1")  # which is over


async def test_no_more_questions_are_under_way_than_allowed() -> None:
    under_way, most = 0, 0

    def question() -> Question[int]:
        async def ask() -> Answer[int]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return Answer(1, is_over=True)

        return ask

    poller = Poller(EVEN, PollTerms(at_once=3))
    await asyncio.gather(*(_all(poller.poll(question())) for _ in range(50)))
    assert most == 3


async def _all(values: AsyncIterator[int]) -> list[int]:
    return [value async for value in values]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("", 0), ("0", 0), (" 30 ", 30), ("-5", 0), ("soon", 0), ("²", 0), ("9" * 40, 3_600), ("1.5", 0)],
)
def test_retry_after_in_seconds(header: str | None, seconds: float) -> None:
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert 3_500 < retry_after_s(formatdate(usegmt=True, timeval=time.time() + 3_600)) <= 3_600


_SCRIPT = {
    RemoteFault.START_REFUSED: (Op.START, How.REFUSE),
    RemoteFault.START_ANSWER_LOST: (Op.START, How.LOSE_ANSWER),
    RemoteFault.START_LOST: (Op.START, How.DROP),
    RemoteFault.FIND_BROKEN: (Op.FIND, How.DROP),
    RemoteFault.FOLLOW_CUT: (Op.STATUS, How.CUT),
    RemoteFault.FORGOTTEN: (Op.STATUS, How.FORGET),
    RemoteFault.STOP_BROKEN: (Op.CANCEL, How.DROP),
    RemoteFault.COLLECT_CUT: (Op.RESULT, How.CUT),
    RemoteFault.RESULT_GONE: (Op.RESULT, How.FORGET),
}


class ScriptedRemoteHarness:
    """Implements `RemoteHarness`."""

    def __init__(self, server: JobServer, remote: HttpRemoteJob) -> None:
        self.remote = remote
        self.call = remote_call(server.url, {"holds": True, "result": "made"})
        self._server = server

    @property
    def effects(self) -> int:
        return self._server.effects.total()

    def meet(self, trouble: RemoteFault) -> None:
        if trouble is RemoteFault.STOP_IMPOSSIBLE:
            self._server.can_stop = False
        else:
            self._server.script.add(*_SCRIPT[trouble])

    def let_go(self) -> None:
        self._server.let_go.set()


class TestHttpRemoteJob(RemoteJobSuite):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[ScriptedRemoteHarness]:
        async with job_server() as server, a_client() as client:
            yield ScriptedRemoteHarness(server, HttpRemoteJob(client, server.url, Poller(FixedRandomness(), SOON)))
