"""How readings and decisions meet: pins that are kept, followed, contended for, out of reach or unreadable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio
from msgspec import structs

from tests.fakes.tool_sources import ScriptedSource, away, definition, restored
from tests.ports.catalog_suite import tool
from tests.unit.registry.discovery.discovery_harness import POLL_S, DiscoveryHarness
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import FIRST_USE, Pin, PinChange, PinFilter, PinState
from toolhub_service.domain.source import Definition, SourceState, Trust
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.discovery.decisions import FORMER_MAX
from toolhub_service.registry.discovery.pin_ledger import PinLedger
from toolhub_service.registry.discovery.shadows import Shadows
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.stores.memory.records import MemoryPins

READ = definition("files", "read")
WRITE = definition("files", "write", "Writes a thing.")
OTHER_READ = definition("files", "read", "Reads another thing.")
NewHarness = Callable[..., DiscoveryHarness]


class FaultyPins(MemoryPins):
    """Fails on request, and lets a test come in between a look and a change."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.before_put: Callable[[], Sequence[Pin]] | None = None
        self.refuses_removal = False

    async def remove(self, pin: Pin) -> bool:
        if self.refuses_removal:
            raise AWAY
        return await super().remove(pin)

    async def of_source(self, source: str) -> Sequence[Pin]:
        if self.failure is not None:
            raise self.failure
        return await super().of_source(source)

    async def put(self, pins: Sequence[Pin]) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.before_put is not None:
            others, self.before_put = self.before_put(), None
            assert await super().put(others)
        return await super().put(pins)

    async def revision(self) -> int:
        if self.failure is not None:
            raise self.failure
        return await super().revision()


AWAY = refuse(ErrorKind.TOOL_UNAVAILABLE, "The store is away.")
UNREADABLE = HubFailure(Reason.PIN_UNREADABLE, "what it holds cannot be read")


@pytest_asyncio.fixture
async def new_harness() -> AsyncIterator[NewHarness]:
    stages: list[DiscoveryHarness] = []

    def make(**settings: object) -> DiscoveryHarness:
        stages.append(DiscoveryHarness(**settings))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for harness in stages:
        await harness.sources.close()


async def begun(harness: DiscoveryHarness, source: ScriptedSource, **terms: object) -> DiscoveryHarness:
    harness.sources.add(source, **terms)  # type: ignore[arg-type]
    await harness.sources.start()
    assert await harness.sources.wait_until_tried(timeout_s=60)
    return harness


async def test_a_definition_written_by_the_operator_is_never_pinned(new_harness: NewHarness) -> None:
    own = structs.replace(WRITE, is_operators=True)
    harness = await begun(new_harness(), ScriptedSource("files", READ, own, trust=Trust.APPROVAL))
    assert harness.state("files/read") is ToolState.QUARANTINED
    assert harness.state("files/write") is ToolState.ACTIVE
    assert {pin.tool for pin in await harness.pins.of_source("files")} == {"files/read"}


async def test_a_definition_written_by_the_operator_is_callable_while_pins_cannot_be_looked_up(
    new_harness: NewHarness,
) -> None:
    pins = FaultyPins()
    pins.failure = UNREADABLE
    harness = await begun(
        new_harness(pins=pins), ScriptedSource("files", READ, structs.replace(WRITE, is_operators=True))
    )
    assert harness.state("files/read") is ToolState.QUARANTINED
    assert harness.state("files/write") is ToolState.ACTIVE


async def test_an_unusable_definition_of_the_operator_reports_its_problem(new_harness: NewHarness) -> None:
    own = structs.replace(WRITE, is_operators=True, problem="Its `webhook` is not active; activate the workflow.")
    harness = await begun(new_harness(), ScriptedSource("files", own))
    assert harness.state("files/write") is ToolState.QUARANTINED
    assert harness.why("files/write") == "Its `webhook` is not active; activate the workflow."


async def drifted(harness: DiscoveryHarness, source: ScriptedSource) -> Pin:
    """The tool `read` has changed and is quarantined."""
    source.definitions = (OTHER_READ, *source.definitions[1:])
    await harness.sources.refresh(["files"])
    assert harness.state("files/read") is ToolState.QUARANTINED
    return await harness.pin("files/read")


async def decide(harness: DiscoveryHarness, pin: Pin, *, approve: bool = True) -> Pin:
    return await harness.desk.decide(pin.source, pin.tool, pin.digest, approve=approve, by="ann", comment="seen")


async def test_first_use_is_reported_and_drift_is_reported_once(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(), source)
    assert {(pin.tool, pin.decided_by) for pin in harness.witness.new} == {
        ("files/read", FIRST_USE),
        ("files/write", FIRST_USE),
    }
    pin = await drifted(harness, source)
    await harness.sources.refresh([])
    assert harness.witness.drift == [pin]
    assert harness.state("files/write") is ToolState.ACTIVE


async def test_a_decision_changes_the_catalog_before_it_is_answered(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(), source)
    pin = await drifted(harness, source)
    approved = await decide(harness, pin)
    assert (approved.state, approved.decided_by, approved.comment) == (PinState.APPROVED, "ann", "seen")
    assert harness.state("files/read") is ToolState.ACTIVE
    assert harness.witness.decisions == [approved]
    assert source.readings == 2
    await decide(harness, approved, approve=False)
    assert harness.state("files/read") is ToolState.QUARANTINED


async def test_deciding_the_same_twice_is_no_error_and_reported_once(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(), source)
    pin = await drifted(harness, source)
    assert await decide(harness, pin) == await decide(harness, pin)
    assert len(harness.witness.decisions) == 1


async def test_a_decision_on_an_unseen_definition_is_refused(new_harness: NewHarness) -> None:
    harness = await begun(new_harness(), ScriptedSource("files", READ))
    with pytest.raises(HubFailure) as caught:
        await harness.sources.decide("files", "files/read", "0" * 64, approve=True, by="ann", comment="")
    assert caught.value.reason.name == "PIN_NOT_FOUND"


async def test_pins_can_be_paged_and_compared(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(), source)
    harness.clock.advance(1)
    pin = await drifted(harness, source)
    pins, total = await harness.sources.pins(PinFilter(states=frozenset({PinState.PENDING})), after=None, limit=10)
    assert (list(pins), total) == ([pin], 1)
    before = await harness.desk.approved_version(pin)
    assert before is not None
    assert before.definition == READ.remote
    assert await harness.desk.approved_version(before) is None


async def test_a_difference_costs_no_reading_of_all_pins_of_its_source(new_harness: NewHarness) -> None:
    pins = FaultyPins()
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(pins=pins), source)
    seen = await drifted(harness, source)
    pins.failure = AWAY
    before = await harness.desk.approved_version(seen)
    assert before is not None
    assert before.definition == READ.remote
    with pytest.raises(ToolFailure):
        await harness.desk.approved_version(structs.replace(seen, source="elsewhere"))


async def test_a_decision_does_not_count_as_a_reading(new_harness: NewHarness) -> None:
    source = ScriptedSource("files", READ)
    harness = await begun(new_harness(), source)
    seen = await drifted(harness, source)
    readings = len(harness.witness.statuses)
    await decide(harness, seen)
    assert [status.quarantined_count for status in harness.witness.checked_statuses][-1] == 0
    assert len(harness.witness.statuses) == readings


@pytest.mark.promise("pins.decision-is-exact")
async def test_a_decision_in_another_process_is_followed_without_a_reading(new_harness: NewHarness) -> None:
    shared = MemoryPins()
    source, same = ScriptedSource("files", READ), ScriptedSource("files", READ)
    here, there = await begun(new_harness(pins=shared), source), await begun(new_harness(pins=shared), same)
    pin = await drifted(here, source)
    await drifted(there, same)
    await decide(there, pin)
    assert here.state("files/read") is ToolState.QUARANTINED
    here.timer.advance(POLL_S)
    await here.until(lambda: here.state("files/read") is ToolState.ACTIVE)
    assert source.readings == 2


async def test_two_that_read_a_new_source_at_once_agree(new_harness: NewHarness) -> None:
    shared = MemoryPins()
    both = [new_harness(pins=shared) for _ in range(2)]
    await asyncio.gather(*(begun(harness, ScriptedSource("files", READ, WRITE)) for harness in both))
    assert [harness.state("files/read") for harness in both] == [ToolState.ACTIVE] * 2
    assert sorted(len(harness.witness.new) for harness in both) == [0, 2]


async def test_the_first_of_two_readings_of_a_new_source_is_trusted(new_harness: NewHarness) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ)
    other = await begun(new_harness(), ScriptedSource("files", OTHER_READ))
    first = structs.replace(await other.pin("files/read"), seen_at_unix_ms=1)
    pins.before_put = lambda: [first]
    harness = await begun(new_harness(pins=pins), source)
    assert harness.state("files/read") is ToolState.QUARANTINED
    assert [pin.change for pin in harness.witness.drift] == [PinChange.CHANGED]
    states = {pin.state for pin in await pins.of_source("files") if pin.digest == first.digest}
    assert states == {PinState.APPROVED}


async def test_the_slower_process_checks_anew_from_the_current_state(new_harness: NewHarness) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ)
    harness = await begun(new_harness(pins=pins), source)
    standing = await harness.pin("files/read")
    source.definitions = ()
    pins.before_put = lambda: [rejected(standing)]
    await harness.sources.refresh([])
    assert (await harness.pin("files/read")).state is PinState.REJECTED
    assert harness.witness.drift == []


@pytest.mark.promise("pins.survive-restart")
async def test_the_state_of_pins_survives_a_restart(new_harness: NewHarness) -> None:
    shared, source = MemoryPins(), ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(pins=shared), source)
    await drifted(harness, source)
    await harness.sources.close()
    again = await begun(new_harness(pins=shared), ScriptedSource("files", OTHER_READ, WRITE))
    assert again.state("files/read") is ToolState.QUARANTINED
    assert again.state("files/write") is ToolState.ACTIVE


async def test_after_a_restart_approved_tools_are_unavailable_until_the_source_answers(new_harness: NewHarness) -> None:
    shared = MemoryPins()
    source = ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(pins=shared), source)
    source.definitions = (OTHER_READ, WRITE)
    await harness.sources.refresh([])
    await harness.sources.close()
    source = ScriptedSource("files", READ, WRITE)
    source.failure = away()
    again = await begun(new_harness(pins=shared), source, restored=restored("files"))
    assert again.state("files/write") is ToolState.UNAVAILABLE
    assert "connection refused" in again.why("files/write")
    assert again.catalog.get("files/read") == READ.spec
    source.failure = None
    await again.sources.refresh([])
    assert again.state("files/write") is ToolState.ACTIVE


async def test_a_pin_that_cannot_be_restored_affects_no_other(new_harness: NewHarness) -> None:
    shared, source = MemoryPins(), ScriptedSource("files", READ, WRITE)
    await begun(new_harness(pins=shared), source)
    source.failure = away()

    def restore(remote: JsonObject) -> Definition:
        if remote["name"] == "read":
            raise ValueError("no longer understood")
        return WRITE

    again = await begun(new_harness(pins=shared), source, restored=restore)
    assert [spec.name for spec in again.catalog.all()] == ["files/write"]
    assert [source for source, _ in again.witness.troubles] == ["files"]


async def test_rejected_or_removed_pins_are_not_restored(new_harness: NewHarness) -> None:
    shared, source = MemoryPins(), ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(pins=shared), source)
    source.definitions = (READ,)
    await harness.sources.refresh([])
    await decide(harness, await harness.pin("files/read"), approve=False)
    source = ScriptedSource("files")
    source.failure = away()
    again = await begun(new_harness(pins=shared), source, restored=restored("files"))
    assert again.catalog.all() == ()


async def test_while_the_store_is_away_what_was_known_stays_callable_and_nothing_new_is(
    new_harness: NewHarness,
) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ, WRITE)
    harness = await begun(new_harness(pins=pins), source)
    pins.failure = AWAY
    source.definitions = (OTHER_READ, WRITE)
    await harness.sources.refresh([])
    assert harness.state("files/write") is ToolState.ACTIVE
    assert harness.state("files/read") is ToolState.QUARANTINED
    assert harness.status().state is SourceState.PARTIAL
    pins.failure = None
    await harness.sources.refresh([])
    assert harness.status().state is SourceState.READY
    assert len(harness.witness.drift) == 1


async def test_a_source_seen_first_while_the_store_is_away_is_not_trusted(new_harness: NewHarness) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ)
    pins.failure = AWAY
    harness = await begun(new_harness(pins=pins), source)
    assert harness.state("files/read") is ToolState.UNAVAILABLE
    pins.failure = None
    await harness.sources.refresh([])
    assert harness.state("files/read") is ToolState.ACTIVE
    pins.failure = AWAY
    with pytest.raises(ToolFailure):
        await decide(harness, harness.witness.new[0])


async def test_a_definition_that_cannot_be_stored_now_is_not_trusted_on_first_use(new_harness: NewHarness) -> None:
    class ReadOnly(FaultyPins):
        async def of_source(self, source: str) -> Sequence[Pin]:
            return await MemoryPins.of_source(self, source)

    pins = ReadOnly()
    pins.failure = AWAY
    harness = await begun(new_harness(pins=pins), ScriptedSource("files", READ))
    assert harness.state("files/read") is ToolState.UNAVAILABLE
    assert harness.witness.new == []


async def test_with_unreadable_pins_nothing_of_the_source_is_callable(new_harness: NewHarness) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ)
    harness = await begun(new_harness(pins=pins), source)
    pins.failure = UNREADABLE
    await harness.sources.refresh([])
    assert harness.state("files/read") is ToolState.QUARANTINED
    assert "cannot be read" in harness.status().reason
    assert harness.witness.troubles[0] == ("files", UNREADABLE)


async def test_a_source_that_is_trusted_always_needs_no_store(new_harness: NewHarness) -> None:
    pins = FaultyPins()
    pins.failure = UNREADABLE
    harness = await begun(new_harness(pins=pins), ScriptedSource("files", READ, trust=Trust.ALWAYS))
    assert harness.state("files/read") is ToolState.ACTIVE


async def test_an_outage_of_the_store_is_reported_once_and_followed_by_a_new_look(new_harness: NewHarness) -> None:
    pins, source = FaultyPins(), ScriptedSource("files", READ)
    harness = await begun(new_harness(pins=pins), source, refresh_s=1_000.0)
    await harness.timer.until_left(POLL_S, 1_000.0)
    pins.failure = AWAY
    for seconds in (1, 2, 3):
        harness.timer.advance(POLL_S)
        await harness.timer.until_left(POLL_S, 1_000.0 - seconds * POLL_S)
    assert harness.witness.troubles == [("pins", AWAY)]
    pins.failure = None
    await pins.put([rejected(await harness.pin("files/read"))])
    harness.timer.advance(POLL_S)
    await harness.until(lambda: harness.state("files/read") is ToolState.QUARANTINED)


def rejected(pin: Pin) -> Pin:
    return structs.replace(pin, state=PinState.REJECTED, version=pin.version + 1)


@pytest.mark.parametrize(
    ("own_name", "like"),
    [
        ("core/fs.readText", "core/fs.readText"),
        ("core__fs_readText", "core/fs.readText"),
        ("CoreFsReadText", "core/fs.readText"),
        ("core.something_new", "core/"),
        ("github__search", "github/search"),
        ("github__other", "github/"),
        ("github_search", "github/search"),
    ],
)
def test_a_name_that_reads_like_another_sources_is_seen(own_name: str, like: str) -> None:
    catalog = ToolCatalog(check_schema=compile_schema)
    catalog.register_builtins([tool("core/fs.readText", source="core")])
    shadows = Shadows(catalog)
    shadows.reserve("github")
    shadows.reserve("files")
    catalog.register(tool("github/search", source="github"))
    assert shadows.shadowed_by(spec_of(own_name)) == like


@pytest.mark.parametrize("own_name", ["read", "files__read", "core_values", "scored.by", "githubber", "a:b", "工具"])
def test_ordinary_names_read_like_themselves(own_name: str) -> None:
    catalog = ToolCatalog(check_schema=compile_schema)
    shadows = Shadows(catalog)
    shadows.reserve("files")
    shadows.reserve("github")
    catalog.register(tool("files/read", source="files"))
    assert shadows.shadowed_by(spec_of(own_name)) == ""


def test_a_tool_that_left_the_catalog_is_no_longer_shadowed() -> None:
    catalog = ToolCatalog(check_schema=compile_schema)
    shadows = Shadows(catalog)
    catalog.register(tool("github/search", source="github"))
    catalog.unregister("github/search")
    assert shadows.shadowed_by(spec_of("github_search")) == ""


def spec_of(own_name: str) -> ToolSpec:
    return tool("files/x", source="files", resource_id=own_name)


@pytest.mark.promise("pins.shadowing-waits")
async def test_a_shadowing_tool_is_quarantined_and_its_siblings_are_not(new_harness: NewHarness) -> None:
    catalog = ToolCatalog(check_schema=compile_schema)
    catalog.register_builtins([tool("core/fs.readText", source="core")])
    source = ScriptedSource("files", READ, definition("files", "core/fs_readText"))
    harness = await begun(new_harness(catalog=catalog), source)
    assert harness.state("files/read") is ToolState.ACTIVE
    assert harness.state("files/core__fs_readText") is ToolState.QUARANTINED
    assert [pin.change for pin in harness.witness.new if pin.state is PinState.PENDING] == [PinChange.SHADOWED]


async def test_a_registration_stands_although_nothing_old_can_be_removed(new_harness: NewHarness) -> None:
    pins, harness = FaultyPins(), new_harness()
    old = (former(number) for number in range(FORMER_MAX + 1))
    assert await pins.put(list(old))
    pins.refuses_removal = True
    ledger = PinLedger(pins, harness.clock, harness.witness, shadowed_by=lambda _: "")
    await ledger.register([READ], {"files": "stdio:files"}, "ann")
    assert [pin.tool for pin in await ledger.registered_pins_of("files")] == ["files/read"]
    assert await ledger.unregister("files", "files/read")
    assert harness.witness.troubles == [("files", AWAY)] * 2


def former(number: int) -> Pin:
    """Registered once, and superseded."""
    return Pin("files", "files/read", f"{number:064x}", {}, PinState.SUPERSEDED, endpoint="stdio:files")
