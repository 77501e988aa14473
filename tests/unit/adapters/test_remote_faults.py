"""Everything that can go wrong on the way to a remote side, alone and with the death of the hub at every point.

Each ends in what is true: never "done" without the work done, never an effect twice, never a failure of what may run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from tests.fakes.job_server import job_server
from tests.fakes.job_server_faults import How, Op
from tests.fakes.remote_harness import RemoteJobHarness, a_client
from tests.fakes.running_jobs import Life
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome

DONE = "done"
UNKNOWN = ErrorKind.OUTCOME_UNKNOWN.value
CANCELLED = ErrorKind.CANCELLED.value
Ending = str
ALWAYS = -1


@dataclass(frozen=True)
class Case:
    name: str
    script: tuple[tuple[Op, How, int], ...] = ()
    ending: Ending = DONE
    posts: int = 1
    effects: int = 1
    traits: dict[str, bool] = field(default_factory=dict)
    work: dict[str, object] = field(default_factory=dict)
    is_cancelled: bool = False
    """Whether somebody cancels the job once it runs, which holds until then."""


def _each(op: Op, hows: tuple[How, ...], ending: Ending = DONE, *, times: int = 1, **fields: object) -> list[Case]:
    label = "always " if times < 0 else ""
    return [
        Case(f"{op.value} {label}{how.value}", ((op, how, times),), ending, **fields)  # type: ignore[arg-type]
        for how in hows
    ]


def _after_a_lost_answer(how: How, times: int = 1, ending: Ending = DONE) -> Case:
    script = ((Op.START, How.LOSE_ANSWER, 1), (Op.FIND, how, times))
    return Case(f"start lost, find {'always ' if times < 0 else ''}{how.value}", script, ending)


CASES = [
    Case("all is well"),
    Case("the work fails", work={"fails": True}, ending=ErrorKind.UPSTREAM_ERROR.value),
    *_each(Op.START, (How.LOSE_ANSWER, How.CUT, How.GARBAGE, How.ERROR_AFTER, How.LATE)),
    *_each(Op.START, (How.DROP, How.ERROR, How.BUSY), posts=2),
    *_each(Op.START, (How.DROP, How.BUSY), ErrorKind.TOOL_UNAVAILABLE.value, times=ALWAYS, posts=3, effects=0),
    *_each(Op.START, (How.REFUSE,), ErrorKind.UPSTREAM_ERROR.value, effects=0),
    *(_after_a_lost_answer(how) for how in (How.DROP, How.ERROR, How.GARBAGE, How.REFUSE, How.BUSY, How.HIDE, How.CUT)),
    *(_after_a_lost_answer(how, ALWAYS, UNKNOWN) for how in (How.DROP, How.ERROR, How.GARBAGE, How.REFUSE)),
    *_each(Op.STATUS, (How.DROP, How.CUT, How.GARBAGE, How.ERROR, How.BUSY, How.HIDE)),
    *_each(Op.STATUS, (How.DROP, How.ERROR), times=5),
    *_each(Op.STATUS, (How.FORGET, How.RESTART, How.REFUSE), UNKNOWN),
    *_each(Op.RESULT, (How.DROP, How.CUT, How.ERROR, How.BUSY)),
    *_each(Op.RESULT, (How.FORGET, How.RESTART, How.HIDE, How.GARBAGE, How.REFUSE), UNKNOWN),
]
_NO_FIND = {"can_find": False}
BLIND = [
    Case("start lost, no lookup", ((Op.START, How.LOSE_ANSWER, 1),), UNKNOWN, traits=_NO_FIND),
    Case("start dropped, no lookup", ((Op.START, How.DROP, 1),), UNKNOWN, effects=0, traits=_NO_FIND),
]
STOPS = [
    Case("cancel", ending=CANCELLED),
    Case("cancel slow", ending=CANCELLED, work={"stops_after": 6}),
    *_each(Op.CANCEL, (How.DROP, How.ERROR, How.BUSY, How.LOSE_ANSWER, How.CUT, How.ERROR_AFTER), CANCELLED),
    *_each(Op.CANCEL, (How.GARBAGE,), CANCELLED, work={"stops_after": 3}),
    *_each(Op.CANCEL, (How.REFUSE, How.IGNORE)),
    Case("cancel impossible", traits={"can_stop": False}),
    Case("cancel, then forgotten", ((Op.CANCEL, How.RESTART, 1),), UNKNOWN),
]
STOPS = [replace(case, is_cancelled=True, work={"holds": True, **case.work}) for case in STOPS]
every_case = pytest.mark.parametrize("case", [*CASES, *BLIND, *STOPS], ids=lambda case: case.name)


@asynccontextmanager
async def _world(case: Case, client: httpx.AsyncClient) -> AsyncIterator[RemoteJobHarness]:
    """The first process over a server that misbehaves, and somebody who cancels where the case says so."""
    async with job_server(**case.traits) as server:
        for op, how, times in case.script:
            server.script.add(op, how, times)
        harness = RemoteJobHarness(server, client)
        somebody = asyncio.create_task(_cancel(harness, case))
        yield harness
        somebody.cancel()


async def _cancel(harness: RemoteJobHarness, case: Case) -> None:
    """Once it runs; what cannot be stopped goes on after it was asked to."""
    if case.is_cancelled:
        await harness.server.was_asked(Op.STATUS)
        harness.kept.cancelled.set()
        await harness.server.was_asked(Op.CANCEL)
        if case.ending == DONE:
            harness.server.let_go.set()


async def _run(harness: RemoteJobHarness, case: Case) -> Outcome | ToolError | None:
    return await harness.run(work={"result": "made", **case.work})


def _ending(outcome: Outcome | ToolError | None) -> Ending:
    assert outcome is not None
    return DONE if isinstance(outcome, Outcome) else outcome.kind.value


def _check_truth(harness: RemoteJobHarness, outcome: Outcome | ToolError | None) -> None:
    """What is told is what the server knows."""
    effects = harness.server.effects.total()
    assert effects <= 1
    states = [task.state for task in harness.server.memory.tasks.values()]
    ending = _ending(outcome)
    if isinstance(outcome, Outcome):
        assert (effects, states, outcome.value) == (1, ["succeeded"], {"value": "made"})
        assert outcome.evidence[-1].attributes["remote_id"] == "r-1"
    elif ending == CANCELLED:
        assert states == ["cancelled"]
    elif ending == UNKNOWN:
        assert isinstance(outcome, ToolError)
        assert harness.kept.history[-1].key in outcome.message
        assert harness.server.url in outcome.message
    else:
        assert effects == 0 or states == ["failed"]


@every_case
@pytest.mark.promise("jobs.lost-is-honest")
async def test_every_fault_ends_in_what_is_true(case: Case) -> None:
    async with a_client() as client, _world(case, client) as harness:
        outcome = await _run(harness, case)
        assert _ending(outcome) == case.ending
        _check_truth(harness, outcome)
        assert harness.server.asked[Op.START] == case.posts
        assert harness.server.effects.total() == case.effects


@pytest.mark.parametrize("gently", [False, True], ids=["killed", "drained"])
@every_case
@pytest.mark.promise("jobs.remote-once")
async def test_death_at_any_point_of_any_fault_is_made_good_by_the_next_run(case: Case, gently: bool) -> None:
    allowed = _allowed_after_death(case)
    async with a_client() as client:
        for point in range(1, 100):
            async with _world(case, client) as world:
                harness = world.successor(Life(point, gently=gently))
                outcome = await _run(harness, case)
                if not harness.life.is_over:
                    assert point > 5
                    return
                assert outcome is None
                stops_asked = harness.server.asked[Op.CANCEL]
                assert case.is_cancelled or stops_asked == 0, f"drained at {harness.life.contacts[-1]}"
                outcome = await _run(harness.successor(), case)
                assert _ending(outcome) in allowed, f"died {harness.life.contacts[-1]}"
                _check_truth(harness, outcome)
    raise AssertionError("it never ends")


def _allowed_after_death(case: Case) -> set[Ending]:
    """The dead run may have been the one that met the fault."""
    allowed = {case.ending}
    if case.is_cancelled:
        allowed |= {CANCELLED}
    if case.ending != DONE:
        allowed |= {DONE} if not case.is_cancelled else set()
    return allowed | ({UNKNOWN} if "can_find" in case.traits else set())


@pytest.mark.promise("jobs.remote-once")
async def test_two_deaths_in_a_row_are_made_good_too() -> None:
    case = Case("start lost", ((Op.START, How.LOSE_ANSWER, 1),))
    async with a_client() as client:
        for first in range(1, 12):
            for second in range(1, 12):
                async with _world(case, client) as harness:
                    lives = (Life(first), Life(second), Life())
                    outcomes = [await _run(harness.successor(life), case) for life in lives]
                    outcome = next(outcome for outcome in outcomes if outcome is not None)
                    _check_truth(harness, outcome)
                    assert _ending(outcome) in _allowed_after_death(case), (first, second)
