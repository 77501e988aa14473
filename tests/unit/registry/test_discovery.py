"""How sources are read: when, how often, and what happens to the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from tests.fakes.tool_sources import ScriptedSource, away, definition
from tests.ports.catalog_suite import tool
from tests.ports.tool_source_suite import ToolSourceSuite
from tests.unit.registry.discovery_stage import POLL_S, Stage
from toolhub_service.domain.error_spec import Code
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.source import Discovery, SourceState, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind, ToolState

READ = definition("files", "read")
WRITE = definition("files", "write", "Writes a thing.")
NEXT_S = 60.0
Staged = Callable[..., Stage]


@pytest_asyncio.fixture
async def staged() -> AsyncIterator[Staged]:
    """Makes stages and closes them in the end."""
    stages: list[Stage] = []

    def make(**settings: object) -> Stage:
        stages.append(Stage(**settings))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for stage in stages:
        await stage.sources.close()


async def begun(stage: Stage, *sources: ScriptedSource, **terms: object) -> Stage:
    for source in sources:
        stage.sources.add(source, **terms)  # type: ignore[arg-type]
    await stage.sources.start()
    assert await stage.sources.settled(timeout_s=60)
    return stage


class TestTheScriptedSourceIsASource(ToolSourceSuite):
    @pytest.fixture
    def source(self) -> ScriptedSource:
        return ScriptedSource("files", READ, WRITE)


async def test_what_a_source_offers_stands_in_the_catalog(staged: Staged) -> None:
    source = ScriptedSource("files", READ, WRITE, server="files 1.2", protocol="2026-07-28")
    stage = await begun(staged(breaker_of=lambda upstream: f"CLOSED {upstream}"), source)
    assert stage.state("files/read") is ToolState.ACTIVE
    status = await stage.witness.readings(1)
    assert status == stage.status()
    assert (status.state, status.reason, status.tool_count, status.quarantined_count) == (SourceState.READY, "", 2, 0)
    assert (status.server, status.protocol, status.breaker) == ("files 1.2", "2026-07-28", "CLOSED mcp:files")
    assert status.refreshed_at_unix_ms == stage.clock.unix_ms()
    assert status.next_refresh_at_unix_ms == stage.clock.unix_ms() + NEXT_S * 1_000
    assert (status.trust, status.diagnostics, status.endpoint) == (Trust.FIRST_USE, ("ready",), source.endpoint)


class Talkative(ScriptedSource):
    """Whose diagnostics are long to look through."""

    looks = 0

    def diagnostics(self) -> Sequence[str]:
        self.looks += 1
        return ("much",)


async def test_what_a_program_wrote_is_looked_through_only_when_an_operator_asks(staged: Staged) -> None:
    source = Talkative("files", READ)
    stage = await begun(staged(), source)
    await stage.witness.readings(1)
    (status,) = await stage.sources.refresh(["files"])
    assert source.looks == 0
    assert (status.diagnostics, source.looks) == (("much",), 1)


@pytest.mark.promise("sources.one-never-delays-another")
async def test_start_returns_before_anything_is_read_and_the_source_is_pending(staged: Staged) -> None:
    stage, source = staged(), ScriptedSource("files", READ)
    source.gate.clear()
    stage.sources.add(source)
    await stage.sources.start()
    assert stage.status().state is SourceState.PENDING
    assert "not been read" in stage.sources.unread("files/read")
    assert not await stage.sources.settled(timeout_s=0)
    source.gate.set()
    assert await stage.sources.settled(["files"], timeout_s=60)
    assert stage.status().state is SourceState.READY
    assert stage.sources.unread("files/nosuch") == ""


async def test_whoever_asks_learns_whether_a_tool_may_yet_appear(staged: Staged) -> None:
    stage, source = staged(), ScriptedSource("files", READ)
    stage.sources.add_disabled(SourceStatus("broken", ToolKind.MCP, SourceState.DOWN, "its secret is not there"))
    stage.sources.add_disabled(SourceStatus("attic", ToolKind.MCP, SourceState.DISABLED, "switched off"))
    source.failure = away("nobody is there")
    await begun(stage, source)
    assert "nobody is there" in stage.sources.unread("files/read")
    assert "secret" in stage.sources.unread("broken/read")
    assert stage.sources.unread("attic/read") == stage.sources.unread("nosuch/read") == ""


@pytest.mark.promise("sources.one-never-delays-another")
async def test_a_source_that_never_answers_delays_no_other(staged: Staged) -> None:
    stage, silent = staged(), ScriptedSource("silent")
    silent.gate.clear()
    stage.sources.add(silent)
    await begun_beside(stage, ScriptedSource("files", READ))
    assert stage.state("files/read") is ToolState.ACTIVE
    assert stage.status("silent").state is SourceState.PENDING


async def begun_beside(stage: Stage, source: ScriptedSource) -> None:
    stage.sources.add(source)
    await stage.sources.start()
    assert await stage.sources.settled([source.name], timeout_s=60)


async def test_a_reading_that_takes_too_long_is_cancelled_and_the_source_down(staged: Staged) -> None:
    stage, source = staged(timeout_s=0.01), ScriptedSource("files", READ)
    source.gate.clear()
    await begun(stage, source)
    assert (stage.status().state, stage.status().reason) == (SourceState.DOWN, "it did not answer within 0.01 s")


@pytest.mark.parametrize(("ttl_s", "expected_s"), [(None, 60.0), (1.0, 30.0), (45.0, 45.0), (9_999.0, 300.0)])
async def test_the_next_reading_is_due_when_the_source_says_within_bounds(
    staged: Staged, ttl_s: float | None, expected_s: float
) -> None:
    source = ScriptedSource("files", READ, ttl_s=ttl_s)
    stage = await begun(staged(), source, refresh_s=60.0)
    await stage.timer.until_left(POLL_S, expected_s)
    stage.timer.advance(expected_s)
    await stage.witness.readings(2)
    assert source.readings == 2


async def test_changes_between_readings_are_applied_in_one_batch(staged: Staged) -> None:
    source = ScriptedSource("files", READ, WRITE, trust=Trust.ALWAYS)
    stage = await begun(staged(), source)
    changes: list[tuple[int, int, int]] = []
    stage.catalog.subscribe(
        lambda change: changes.append((len(change.added), len(change.changed), len(change.removed)))
    )
    source.definitions = (definition("files", "read", "Other."), definition("files", "list"))
    await stage.sources.refresh(["files"])
    assert changes == [(1, 1, 1)]
    await stage.sources.refresh(["files"])
    assert changes == [(1, 1, 1)]


async def test_a_burst_of_notices_is_one_reading_a_quarter_second_after_the_last(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    stage = await begun(staged(poll_s=1_000.0), source)
    await stage.timer.until_left(NEXT_S, 1_000.0)
    stage.timer.advance(10.0)
    for left_s in (990.0, 989.9, 989.8):
        source.say_changed()
        source.say_changed()
        await stage.timer.until_left(0.25, left_s)
        stage.timer.advance(0.1)
    stage.timer.advance(0.15)
    await stage.witness.readings(2)
    await stage.timer.until_left(NEXT_S, 989.55)
    assert source.readings == 2


async def test_notices_without_end_are_read_two_seconds_after_the_first(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    stage = await begun(staged(poll_s=1_000.0), source)
    await stage.timer.until_left(NEXT_S, 1_000.0)
    stage.timer.advance(10.0)
    for tenths in range(20):
        source.say_changed()
        await stage.timer.until_left(min(0.25, 2.0 - tenths / 10), 990.0 - tenths / 10)
        stage.timer.advance(0.1)
    await stage.witness.readings(2)
    assert source.readings == 2


async def test_a_source_that_announces_changes_all_the_time_is_read_once_a_second_at_most(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    stage = await begun(staged(poll_s=1_000.0), source)
    await stage.timer.until_left(NEXT_S, 1_000.0)
    source.say_changed()
    await stage.timer.until_left(1.0, 1_000.0)
    assert source.readings == 1


class CostlySource(ScriptedSource):
    """Each reading takes a second of a processor."""

    stage: Stage

    async def discover(self) -> Discovery:
        self.stage.cpu_s += 1.0
        return await super().discover()


async def test_readings_of_a_source_take_a_tenth_of_a_processor_whoever_asks_for_them(staged: Staged) -> None:
    source = CostlySource("files", READ)
    source.stage = stage = staged(poll_s=1_000.0)
    await begun(stage, source)
    await stage.timer.until_left(NEXT_S, 1_000.0)
    source.say_changed()
    await stage.timer.until_left(9.0, 1_000.0)
    asking = asyncio.create_task(stage.sources.refresh(["files"]))
    await stage.timer.until_left(9.0, 1_000.0)
    stage.timer.advance(8.9)
    await stage.timer.until_left(0.1, 991.1)
    assert (source.readings, asking.done()) == (1, False)
    stage.timer.advance(0.2)
    await asking
    assert source.readings == 2


@pytest.mark.promise("sources.down-is-told-not-hidden")
async def test_a_source_that_fails_keeps_its_tools_unavailable_with_the_reason(staged: Staged) -> None:
    source = ScriptedSource("files", READ, WRITE)
    stage = await begun(staged(), source)
    source.failure = away("connection refused\u202e")
    await stage.sources.refresh(["files"])
    assert stage.state("files/read") is ToolState.UNAVAILABLE
    assert "connection refused\\u202e" in stage.why("files/read")
    assert (stage.status().state, stage.status().tool_count) == (SourceState.DOWN, 2)
    source.failure = None
    await stage.sources.refresh(["files"])
    assert (stage.state("files/read"), stage.status().state) == (ToolState.ACTIVE, SourceState.READY)


async def test_a_quarantined_tool_stays_quarantined_while_its_source_is_down(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    stage = await begun(staged(), source)
    source.definitions = (READ, WRITE)
    await stage.sources.refresh(["files"])
    source.failure = away()
    await stage.sources.refresh(["files"])
    assert stage.state("files/write") is ToolState.QUARANTINED
    assert stage.status().quarantined_count == 1


async def test_a_source_that_stays_away_is_tried_ever_more_seldom(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    source.failure = away()
    stage = await begun(staged(poll_s=10_000.0), source, refresh_s=20.0)
    spent_s = 0.0
    for attempt, pause_s in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0], 2):
        await stage.timer.until_left(pause_s, 10_000.0 - spent_s)
        stage.timer.advance(pause_s)
        spent_s += pause_s
        await stage.witness.readings(attempt)
    assert source.readings == 8


async def test_the_pauses_are_spread_by_chance(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    source.failure = away()
    stage = staged(poll_s=10_000.0)
    stage.randomness.share = 0.0
    await begun(stage, source)
    await stage.timer.until_left(0.5, 10_000.0)
    assert source.readings == 1


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), asyncio.CancelledError(), TimeoutError()])
async def test_whatever_a_source_raises_it_is_read_again(staged: Staged, failure: BaseException) -> None:
    source = ScriptedSource("files", READ)
    source.failure = failure
    stage = await begun(staged(), source)
    assert stage.status().state is SourceState.DOWN
    assert "a defect" not in stage.status().reason
    source.failure = None
    await stage.sources.refresh(["files"])
    assert stage.status().state is SourceState.READY


async def test_a_defect_is_told_to_the_operator(staged: Staged) -> None:
    source = ScriptedSource("files", READ)
    source.failure = RuntimeError("a defect")
    stage = await begun(staged(), source)
    assert stage.witness.troubles == [("files", source.failure)]


async def test_a_refused_tool_harms_no_sibling_and_makes_the_source_partial(staged: Staged) -> None:
    stage = staged()
    stage.catalog.register(tool("files/wri.te", source="other"))
    await begun(stage, ScriptedSource("files", READ, WRITE))
    assert stage.state("files/read") is ToolState.ACTIVE
    assert stage.catalog.get("files/write") is None
    status = stage.status()
    assert (status.state, status.tool_count) == (SourceState.PARTIAL, 1)
    assert "`files/write` is not offered" in status.reason


async def test_what_could_not_be_read_is_told(staged: Staged) -> None:
    problems = tuple(f"Page {number} failed." for number in range(5))
    stage = await begun(staged(), ScriptedSource("files", READ, problems=problems))
    assert stage.status().state is SourceState.PARTIAL
    assert stage.status().reason == "Page 0 failed. Page 1 failed. Page 2 failed. And 2 more."


async def test_what_a_reading_lacks_that_was_not_complete_is_unavailable_until_one_is(staged: Staged) -> None:
    source = ScriptedSource("files", READ, WRITE)
    stage = await begun(staged(), source)
    source.definitions, source.discovery = (READ,), {"problems": ("Page 2 failed.",)}
    for _ in range(2):
        await stage.sources.refresh([])
        assert stage.state("files/read") is ToolState.ACTIVE
        assert stage.state("files/write") is ToolState.UNAVAILABLE
    assert stage.witness.drift == []
    source.discovery = {}
    await stage.sources.refresh([])
    assert stage.state("files/write") is None


@pytest.mark.promise("sources.broken-tool-alone")
async def test_a_tool_with_an_unusable_schema_is_quarantined_and_its_siblings_work(staged: Staged) -> None:
    broken = definition("files", "broken", problem="Its inputSchema cannot be used: it is too deep.")
    stage = await begun(staged(), ScriptedSource("files", READ, broken))
    assert stage.state("files/read") is ToolState.ACTIVE
    assert stage.state("files/broken") is ToolState.QUARANTINED
    assert "too deep" in stage.why("files/broken")


async def test_what_the_operator_disabled_is_disabled(staged: Staged) -> None:
    stage = await begun(staged(is_disabled=lambda name: name == "files/write"), ScriptedSource("files", READ, WRITE))
    assert stage.state("files/write") is ToolState.DISABLED
    assert stage.state("files/read") is ToolState.ACTIVE


async def test_a_removed_source_is_closed_and_its_tools_go(staged: Staged) -> None:
    source, other = ScriptedSource("files", READ), ScriptedSource("desk", definition("desk", "read"))
    stage = await begun(staged(), source, other)
    await stage.sources.remove("files")
    assert source.is_closed
    assert [spec.name for spec in stage.catalog.all()] == ["desk/read"]
    assert len(await stage.pins.of_source("files")) == 1
    await stage.sources.remove("desk", forget=True)
    assert len(await stage.pins.of_source("desk")) == 0
    with pytest.raises(HubFailure) as caught:
        await stage.sources.remove("files")
    assert (caught.value.reason.code, caught.value.reason.name) == (Code.NOT_FOUND, "SOURCE_NOT_FOUND")


async def test_a_source_can_be_added_while_others_run_and_again_after_it_was_removed(staged: Staged) -> None:
    stage = await begun(staged(), ScriptedSource("desk"))
    for _ in range(2):
        stage.sources.add(ScriptedSource("files", READ))
        assert await stage.sources.settled(["files"], timeout_s=60)
        assert stage.state("files/read") is ToolState.ACTIVE
        await stage.sources.remove("files")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("core", "SOURCE_NAME_RESERVED"),
        ("c-o-r-e", "SOURCE_NAME_RESERVED"),
        ("custom", "SOURCE_NAME_RESERVED"),
        ("registered", "SOURCE_NAME_RESERVED"),
        ("files", "SOURCE_EXISTS"),
        ("fi_les", "SOURCE_EXISTS"),
    ],
)
async def test_a_source_whose_name_reads_like_another_is_refused(staged: Staged, name: str, reason: str) -> None:
    stage = await begun(staged(), ScriptedSource("files", READ))
    with pytest.raises(HubFailure) as caught:
        stage.sources.add(ScriptedSource(name))
    assert caught.value.reason.name == reason
    if name != "files":
        stage.sources.add_disabled(SourceStatus(name, ToolKind.MCP, SourceState.DOWN, caught.value.message))
        await stage.sources.remove(name)
    with pytest.raises(HubFailure):
        stage.sources.add(ScriptedSource(name))


async def test_closing_closes_every_source_even_where_one_fails_at_it(staged: Staged) -> None:
    class Stubborn(ScriptedSource):
        async def close(self) -> None:
            await super().close()
            raise RuntimeError("it will not")

    stubborn, other = Stubborn("stubborn"), ScriptedSource("files", READ)
    stage = await begun(staged(), stubborn, other)
    other.gate.clear()
    reading = asyncio.create_task(stage.sources.refresh(["files"]))
    await asyncio.sleep(0)
    await stage.sources.close()
    assert stubborn.is_closed
    assert other.is_closed
    assert [source for source, _ in stage.witness.troubles] == ["stubborn"]
    async with asyncio.timeout(60):
        await reading


async def test_refreshing_answers_when_a_reading_that_began_later_has_ended(staged: Staged) -> None:
    source = ScriptedSource("files", READ, trust=Trust.ALWAYS)
    stage = await begun(staged(), source)
    source.gate.clear()
    first = asyncio.create_task(stage.sources.refresh([]))
    await source.begun(2)
    second = asyncio.create_task(stage.sources.refresh(["files"]))
    source.definitions = (READ, WRITE)
    source.gate.set()
    assert [status.tool_count for status in await first] == [2]
    assert [status.tool_count for status in await second] == [2]
    assert source.readings == 3


async def test_refreshing_an_unknown_source_is_refused(staged: Staged) -> None:
    stage = await begun(staged(), ScriptedSource("files", READ))
    with pytest.raises(HubFailure) as caught:
        await stage.sources.refresh(["files", "nosuch"])
    assert caught.value.reason.name == "SOURCE_NOT_FOUND"


async def test_statuses_name_built_in_sources_first_and_those_that_are_not_read(staged: Staged) -> None:
    core = SourceStatus("core", ToolKind.CORE)
    stage = staged(builtins=lambda: [core])
    stage.sources.add_disabled(SourceStatus("attic", ToolKind.MCP, SourceState.DISABLED))
    await begun(stage, ScriptedSource("zoo"), ScriptedSource("files", READ))
    assert [status.name for status in stage.sources.statuses()] == ["core", "attic", "files", "zoo"]
    assert await stage.sources.refresh(["core"]) == (core,)
    await stage.sources.remove("attic")
    assert "attic" not in [status.name for status in stage.sources.statuses()]
