"""How sources are read: when, how often, and what happens to the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from tests.fakes.tool_sources import ScriptedSource, away, definition
from tests.ports.catalog_suite import tool
from tests.ports.tool_source_suite import ToolSourceSuite
from tests.unit.registry.discovery.discovery_harness import POLL_S, DiscoveryHarness
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.source import Discovery, SourceState, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind, ToolState

READ = definition("files", "read")
WRITE = definition("files", "write", "Writes a thing.")
NEXT_S = 60.0
NewHarness = Callable[..., DiscoveryHarness]


@pytest_asyncio.fixture
async def new_harness() -> AsyncIterator[NewHarness]:
    """Makes stages and closes them in the end."""
    stages: list[DiscoveryHarness] = []

    def make(**settings: object) -> DiscoveryHarness:
        stages.append(DiscoveryHarness(**settings))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for harness in stages:
        await harness.sources.close()


async def begun(harness: DiscoveryHarness, *sources: ScriptedSource, **terms: object) -> DiscoveryHarness:
    for source in sources:
        harness.sources.add(source, **terms)  # type: ignore[arg-type]
    await harness.sources.start()
    assert await harness.sources.wait_until_tried(timeout_s=60)
    return harness


class TestScriptedSource(ToolSourceSuite):
    @pytest.fixture
    def source(self) -> ScriptedSource:
        return ScriptedSource("files", READ, WRITE)


async def test_tools_of_a_source_are_in_the_catalog(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ, WRITE, server="files 1.2", protocol="2026-07-28")
    harness = await begun(new_harness(breaker_of=lambda upstream: f"CLOSED {upstream}"), source)
    assert harness.state("files/read") is ToolState.ACTIVE
    status = await harness.witness.readings(1)
    assert status == harness.status()
    assert (status.state, status.reason, status.tool_count, status.quarantined_count) == (SourceState.READY, "", 2, 0)
    assert (status.server, status.protocol, status.breaker) == ("files 1.2", "2026-07-28", "CLOSED mcp:files")
    assert status.refreshed_at_unix_ms == harness.clock.unix_ms()
    assert status.next_refresh_at_unix_ms == harness.clock.unix_ms() + NEXT_S * 1_000
    assert (status.trust, status.diagnostics, status.endpoint) == (Trust.FIRST_USE, ("ready",), source.endpoint)


class LongDiagnostics(ScriptedSource):
    """Whose diagnostics are long to look through."""

    looks = 0

    def diagnostics(self) -> Sequence[str]:
        self.looks += 1
        return ("much",)


async def test_the_output_of_a_program_is_searched_only_when_an_operator_asks(new_harness: NewHarness) -> None:
    source = LongDiagnostics("files", READ)
    harness = await begun(new_harness(), source)
    await harness.witness.readings(1)
    (status,) = await harness.sources.refresh(["files"])
    assert source.looks == 0
    assert (status.diagnostics, source.looks) == (("much",), 1)


async def test_a_job_is_kept_waiting_for_its_own_source_and_by_its_calls_for_all(new_harness: NewHarness) -> None:
    harness, files, desk = new_harness(), ScriptedSource("files", READ), ScriptedSource("desk")
    files.gate.clear()
    desk.gate.clear()
    harness.sources.add(files)
    harness.sources.add(desk)
    harness.catalog.register(tool("test/program.run", replays=True))
    await harness.sources.start()
    await harness.sources.await_readings_for("core/util.time.now")
    waits = [
        asyncio.create_task(harness.sources.await_readings_for(tool)) for tool in ("files/read", "test/program.run")
    ]
    files.gate.set()
    await waits[0]
    assert harness.state("files/read") is ToolState.ACTIVE
    assert not waits[1].done()
    desk.gate.set()
    await waits[1]


@pytest.mark.parametrize("name", ["files/read", "files__read", "files__read_3f2a91bc"])
async def test_a_submission_waits_for_the_source_of_a_full_or_exported_name(new_harness: NewHarness, name: str) -> None:
    harness, files = new_harness(), ScriptedSource("files", READ)
    files.gate.clear()
    harness.sources.add(files)
    await harness.sources.start()
    waiting = asyncio.create_task(harness.sources.await_reading_of(name))
    for other in ("file__read", "__read"):
        await harness.sources.await_reading_of(other)
    assert not waiting.done()
    files.gate.set()
    await waiting
    assert harness.state("files/read") is ToolState.ACTIVE


async def test_a_job_waits_for_a_source_no_longer_than_a_reading_may_take(new_harness: NewHarness) -> None:
    harness, silent = new_harness(timeout_s=0.01), ScriptedSource("silent", READ)
    silent.gate.clear()
    await begun(harness, silent)
    await harness.sources.await_readings_for("silent/read")
    assert "did not answer" in harness.sources.unread_reason("silent/read")


@pytest.mark.promise("sources.one-never-delays-another")
async def test_start_returns_before_anything_is_read_and_the_source_is_pending(new_harness: NewHarness) -> None:
    harness, source = new_harness(), ScriptedSource("files", READ)
    source.gate.clear()
    harness.sources.add(source)
    await harness.sources.start()
    assert harness.status().state is SourceState.PENDING
    assert "not been read" in harness.sources.unread_reason("files/read")
    assert not await harness.sources.wait_until_tried(timeout_s=0)
    source.gate.set()
    assert await harness.sources.wait_until_tried(["files"], timeout_s=60)
    assert harness.status().state is SourceState.READY
    assert harness.sources.unread_reason("files/nosuch") == ""


async def test_a_source_is_ready_only_when_all_its_tools_are_in_the_catalog(new_harness: NewHarness) -> None:
    names = [f"tool{number}" for number in range(400)]
    harness, source = new_harness(), ScriptedSource("files", *(definition("files", name) for name in names))
    harness.sources.add(source)
    await harness.sources.start()
    while (status := harness.status()).state is not SourceState.READY:
        assert status.state is SourceState.PENDING
        await asyncio.sleep(0)
    assert {harness.state(f"files/{name}") for name in names} == {ToolState.ACTIVE}


async def test_a_caller_learns_whether_a_tool_may_yet_appear(new_harness: NewHarness) -> None:
    harness, source = new_harness(), ScriptedSource("files", READ)
    harness.sources.add_disabled(SourceStatus("broken", ToolKind.MCP, SourceState.DOWN, "its secret is not there"))
    harness.sources.add_disabled(SourceStatus("attic", ToolKind.MCP, SourceState.DISABLED, "switched off"))
    source.failure = away("nobody is there")
    await begun(harness, source)
    assert "nobody is there" in harness.sources.unread_reason("files/read")
    assert "secret" in harness.sources.unread_reason("broken/read")
    assert harness.sources.unread_reason("attic/read") == harness.sources.unread_reason("nosuch/read") == ""


@pytest.mark.promise("sources.one-never-delays-another")
async def test_a_source_that_never_answers_delays_no_other(new_harness: NewHarness) -> None:
    harness, silent = new_harness(), ScriptedSource("silent")
    silent.gate.clear()
    harness.sources.add(silent)
    await begun_beside(harness, ScriptedSource("files", READ))
    assert harness.state("files/read") is ToolState.ACTIVE
    assert harness.status("silent").state is SourceState.PENDING


async def begun_beside(harness: DiscoveryHarness, source: ScriptedSource) -> None:
    harness.sources.add(source)
    await harness.sources.start()
    assert await harness.sources.wait_until_tried([source.name], timeout_s=60)


async def test_a_reading_that_takes_too_long_is_cancelled_and_the_source_down(new_harness: NewHarness) -> None:
    harness, source = new_harness(timeout_s=0.01), ScriptedSource("files", READ)
    source.gate.clear()
    await begun(harness, source)
    assert (harness.status().state, harness.status().reason) == (SourceState.DOWN, "it did not answer within 0.01 s")


@pytest.mark.parametrize(("ttl_s", "expected_s"), [(None, 60.0), (1.0, 30.0), (45.0, 45.0), (9_999.0, 300.0)])
async def test_the_next_reading_is_due_as_the_source_states_within_bounds(
    new_harness: NewHarness, ttl_s: float | None, expected_s: float
) -> None:
    source = ScriptedSource("files", READ, ttl_s=ttl_s)
    harness = await begun(new_harness(), source, refresh_s=60.0)
    await harness.timer.until_left(POLL_S, expected_s)
    harness.timer.advance(expected_s)
    await harness.witness.readings(2)
    assert source.readings == 2


async def test_changes_between_readings_are_applied_in_one_batch(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ, WRITE, trust=Trust.ALWAYS)
    harness = await begun(new_harness(), source)
    changes: list[tuple[int, int, int]] = []
    harness.catalog.subscribe(
        lambda change: changes.append((len(change.added), len(change.changed), len(change.removed)))
    )
    source.definitions = (definition("files", "read", "Other."), definition("files", "list"))
    await harness.sources.refresh(["files"])
    assert changes == [(1, 1, 1)]
    await harness.sources.refresh(["files"])
    assert changes == [(1, 1, 1)]


async def test_a_burst_of_notices_is_one_reading_a_quarter_second_after_the_last(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(poll_s=1_000.0), source)
    await harness.timer.until_left(NEXT_S, 1_000.0)
    harness.timer.advance(10.0)
    for left_s in (990.0, 989.9, 989.8):
        source.notify_changed()
        source.notify_changed()
        await harness.timer.until_left(0.25, left_s)
        harness.timer.advance(0.1)
    harness.timer.advance(0.15)
    await harness.witness.readings(2)
    await harness.timer.until_left(NEXT_S, 989.55)
    assert source.readings == 2


async def test_notices_without_end_are_read_two_seconds_after_the_first(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(poll_s=1_000.0), source)
    await harness.timer.until_left(NEXT_S, 1_000.0)
    harness.timer.advance(10.0)
    for tenths in range(20):
        source.notify_changed()
        await harness.timer.until_left(min(0.25, 2.0 - tenths / 10), 990.0 - tenths / 10)
        harness.timer.advance(0.1)
    await harness.witness.readings(2)
    assert source.readings == 2


async def test_a_source_that_announces_changes_all_the_time_is_read_once_a_second_at_most(
    new_harness: NewHarness,
) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(poll_s=1_000.0), source)
    await harness.timer.until_left(NEXT_S, 1_000.0)
    source.notify_changed()
    await harness.timer.until_left(1.0, 1_000.0)
    assert source.readings == 1


class CostlySource(ScriptedSource):
    """Each reading takes a second of a processor."""

    harness: DiscoveryHarness

    async def discover(self) -> Discovery:
        self.harness.cpu_s += 1.0
        return await super().discover()


async def test_readings_of_a_source_take_a_tenth_of_a_processor_for_all_askers_together(
    new_harness: NewHarness,
) -> None:
    source = CostlySource("files", READ)
    source.harness = harness = new_harness(poll_s=1_000.0)
    await begun(harness, source)
    await harness.timer.until_left(NEXT_S, 1_000.0)
    source.notify_changed()
    await harness.timer.until_left(9.0, 1_000.0)
    asking = asyncio.create_task(harness.sources.refresh(["files"]))
    await harness.timer.until_left(9.0, 1_000.0)
    harness.timer.advance(8.9)
    await harness.timer.until_left(0.1, 991.1)
    assert (source.readings, asking.done()) == (1, False)
    harness.timer.advance(0.2)
    await asking
    assert source.readings == 2


@pytest.mark.promise("sources.down-is-reported")
async def test_a_source_that_fails_keeps_its_tools_unavailable_with_the_reason(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(), source)
    source.failure = away("connection refused\u202e")
    await harness.sources.refresh(["files"])
    assert harness.state("files/read") is ToolState.UNAVAILABLE
    assert "connection refused\\u202e" in harness.why("files/read")
    assert (harness.status().state, harness.status().tool_count) == (SourceState.DOWN, 2)
    source.failure = None
    await harness.sources.refresh(["files"])
    assert (harness.state("files/read"), harness.status().state) == (ToolState.ACTIVE, SourceState.READY)


async def test_a_quarantined_tool_stays_quarantined_while_its_source_is_down(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(), source)
    source.definitions = (READ, WRITE)
    await harness.sources.refresh(["files"])
    source.failure = away()
    await harness.sources.refresh(["files"])
    assert harness.state("files/write") is ToolState.QUARANTINED
    assert harness.status().quarantined_count == 1


async def test_a_source_that_stays_away_is_tried_ever_more_seldom(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    source.failure = away()
    harness = await begun(new_harness(poll_s=10_000.0), source, refresh_s=20.0)
    spent_s = 0.0
    for attempt, pause_s in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0], 2):
        await harness.timer.until_left(pause_s, 10_000.0 - spent_s)
        harness.timer.advance(pause_s)
        spent_s += pause_s
        await harness.witness.readings(attempt)
    assert source.readings == 8


async def test_the_pauses_are_spread_by_chance(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    source.failure = away()
    harness = new_harness(poll_s=10_000.0)
    harness.randomness.share = 0.0
    await begun(harness, source)
    await harness.timer.until_left(0.5, 10_000.0)
    assert source.readings == 1


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), asyncio.CancelledError(), TimeoutError()])
async def test_a_source_is_read_again_after_any_exception(new_harness: NewHarness, failure: BaseException) -> None:
    source = ScriptedSource("files", READ)
    source.failure = failure
    harness = await begun(new_harness(), source)
    assert harness.status().state is SourceState.DOWN
    assert "a defect" not in harness.status().reason
    source.failure = None
    await harness.sources.refresh(["files"])
    assert harness.status().state is SourceState.READY


async def test_a_defect_is_reported_to_the_operator(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    source.failure = RuntimeError("a defect")
    harness = await begun(new_harness(), source)
    assert harness.witness.troubles == [("files", source.failure)]


async def test_a_refused_tool_affects_no_other_and_makes_the_source_partial(new_harness: NewHarness) -> None:
    harness = new_harness()
    harness.catalog.register(tool("files/wri.te", source="other"))
    await begun(harness, ScriptedSource("files", READ, WRITE))
    assert harness.state("files/read") is ToolState.ACTIVE
    assert harness.catalog.get("files/write") is None
    status = harness.status()
    assert (status.state, status.tool_count) == (SourceState.PARTIAL, 1)
    assert "`files/write` is not offered" in status.reason


async def test_a_failed_reading_is_reported(new_harness: NewHarness) -> None:
    problems = tuple(f"Page {number} failed." for number in range(5))
    harness = await begun(new_harness(), ScriptedSource("files", READ, problems=problems))
    assert harness.status().state is SourceState.PARTIAL
    assert harness.status().reason == "Page 0 failed. Page 1 failed. Page 2 failed. And 2 more."


async def test_tools_missing_from_an_incomplete_reading_are_unavailable_until_a_complete_one(
    new_harness: NewHarness,
) -> None:
    source = ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(), source)
    source.definitions, source.discovery = (READ,), {"problems": ("Page 2 failed.",)}
    for _ in range(2):
        await harness.sources.refresh([])
        assert harness.state("files/read") is ToolState.ACTIVE
        assert harness.state("files/write") is ToolState.UNAVAILABLE
    assert harness.witness.drift == []
    source.discovery = {}
    await harness.sources.refresh([])
    assert harness.state("files/write") is None


@pytest.mark.promise("sources.broken-tool-alone")
async def test_a_tool_with_an_unusable_schema_is_quarantined_and_its_siblings_work(new_harness: NewHarness) -> None:
    broken = definition("files", "broken", problem="Its inputSchema cannot be used: it is too deep.")
    harness = await begun(new_harness(), ScriptedSource("files", READ, broken))
    assert harness.state("files/read") is ToolState.ACTIVE
    assert harness.state("files/broken") is ToolState.QUARANTINED
    assert "too deep" in harness.why("files/broken")


async def test_a_tool_disabled_by_the_operator_is_disabled(new_harness: NewHarness) -> None:
    harness = await begun(
        new_harness(is_disabled=lambda name: name == "files/write"), ScriptedSource("files", READ, WRITE)
    )
    assert harness.state("files/write") is ToolState.DISABLED
    assert harness.state("files/read") is ToolState.ACTIVE


async def test_a_removed_source_is_closed_and_its_tools_go(new_harness: NewHarness) -> None:
    source, other = ScriptedSource("files", READ), ScriptedSource("desk", definition("desk", "read"))
    harness = await begun(new_harness(), source, other)
    await harness.sources.remove("files")
    assert source.is_closed
    assert [spec.name for spec in harness.catalog.all()] == ["desk/read"]
    assert len(await harness.pins.of_source("files")) == 1
    await harness.sources.remove("desk", forget=True)
    assert len(await harness.pins.of_source("desk")) == 0
    with pytest.raises(HubFailure) as caught:
        await harness.sources.remove("files")
    assert (caught.value.reason.code, caught.value.reason.name) == (Code.NOT_FOUND, "SOURCE_NOT_FOUND")


async def test_a_source_can_be_added_while_others_run_and_again_after_it_was_removed(new_harness: NewHarness) -> None:
    harness = await begun(new_harness(), ScriptedSource("desk"))
    for _ in range(2):
        harness.sources.add(ScriptedSource("files", READ))
        assert await harness.sources.wait_until_tried(["files"], timeout_s=60)
        assert harness.state("files/read") is ToolState.ACTIVE
        await harness.sources.remove("files")


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
async def test_a_source_whose_name_reads_like_another_is_refused(
    new_harness: NewHarness, name: str, reason: str
) -> None:
    harness = await begun(new_harness(), ScriptedSource("files", READ))
    with pytest.raises(HubFailure) as caught:
        harness.sources.add(ScriptedSource(name))
    assert caught.value.reason.name == reason
    if name != "files":
        harness.sources.add_disabled(SourceStatus(name, ToolKind.MCP, SourceState.DOWN, caught.value.message))
        await harness.sources.remove(name)
    with pytest.raises(HubFailure):
        harness.sources.add(ScriptedSource(name))


async def test_closing_closes_every_source_even_where_one_fails_at_it(new_harness: NewHarness) -> None:
    class Stubborn(ScriptedSource):
        async def close(self) -> None:
            await super().close()
            raise RuntimeError("it will not")

    stubborn, other = Stubborn("stubborn"), ScriptedSource("files", READ)
    harness = await begun(new_harness(), stubborn, other)
    other.gate.clear()
    reading = asyncio.create_task(harness.sources.refresh(["files"]))
    await asyncio.sleep(0)
    await harness.sources.close()
    assert stubborn.is_closed
    assert other.is_closed
    assert [source for source, _ in harness.witness.troubles] == ["stubborn"]
    async with asyncio.timeout(60):
        await reading


async def test_refreshing_answers_when_a_reading_that_began_later_has_ended(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ, trust=Trust.ALWAYS)
    harness = await begun(new_harness(), source)
    source.gate.clear()
    first = asyncio.create_task(harness.sources.refresh([]))
    await source.begun(2)
    second = asyncio.create_task(harness.sources.refresh(["files"]))
    source.definitions = (READ, WRITE)
    source.gate.set()
    assert [status.tool_count for status in await first] == [2]
    assert [status.tool_count for status in await second] == [2]
    assert source.readings == 3


async def test_refreshing_an_unknown_source_is_refused(new_harness: NewHarness) -> None:
    harness = await begun(new_harness(), ScriptedSource("files", READ))
    with pytest.raises(HubFailure) as caught:
        await harness.sources.refresh(["files", "nosuch"])
    assert caught.value.reason.name == "SOURCE_NOT_FOUND"


async def test_statuses_name_built_in_sources_first_and_those_that_are_not_read(new_harness: NewHarness) -> None:
    core = SourceStatus("core", ToolKind.CORE)
    harness = new_harness(builtins=lambda: [core])
    harness.sources.add_disabled(SourceStatus("attic", ToolKind.MCP, SourceState.DISABLED))
    await begun(harness, ScriptedSource("zoo"), ScriptedSource("files", READ))
    assert [status.name for status in harness.sources.statuses()] == ["core", "attic", "files", "zoo"]
    assert await harness.sources.refresh(["core"]) == (core,)
    await harness.sources.remove("attic")
    assert "attic" not in [status.name for status in harness.sources.statuses()]
