"""What a source offers, prepared for the comparison with pins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.tool_sources import definition
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.guards.descriptions import Finding
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.registry.discovery.offers import BATCH, DEFINITION_MAX_CHARS, SMALL_CHARS, SourceTools, offers_of
from toolhub_service.schema.compiled import compile_schema


def of_size(chars: int) -> Definition:
    return definition("files", "t", "x" * chars)


async def test_only_a_large_definition_is_checked_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def check(definition: JsonObject, siblings: Collection[str]) -> tuple[Finding, ...]:
        threads.append(threading.current_thread())
        return ()

    sizes = 10, 2 * SMALL_CHARS
    offers = [*await offers_of("files", [of_size(chars) for chars in sizes], check=check)]
    assert [offer.digest for offer in offers] == [pin_digest("files", of_size(chars).remote) for chars in sizes]
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
    assert await offers_of("files", [of_size(chars) for chars in sizes], offers, check=check) == tuple(offers)
    assert len(threads) == 2


def _deep() -> Any:
    value: Any = "x"
    for _ in range(300):
        value = [value]
    return value


@pytest.mark.parametrize("what", ["x" * (DEFINITION_MAX_CHARS + 1), "half \ud800", float("nan"), _deep()])
async def test_a_definition_that_cannot_be_stored_has_no_digest(what: Any) -> None:
    spec = definition("files", "t").spec
    (offer,) = await offers_of("files", [Definition(spec, {"name": "t", "description": what})])
    assert (offer.digest, offer.findings) == ("", ())


MANY = 20 * BATCH


class OffersHarness:
    def __init__(self) -> None:
        self.catalog = ToolCatalog(check_schema=compile_schema)
        self.tools = SourceTools(self.catalog, "files", is_disabled=lambda _: False)
        self.changes: list[CatalogChange] = []
        self.catalog.subscribe(self.changes.append)


def specs(number: int, description: str = "Reads.") -> list[ToolSpec]:
    return [definition("files", f"t{each}", description).spec for each in range(number)]


async def test_few_changes_are_one_batch_with_what_goes() -> None:
    harness = OffersHarness()
    await harness.tools.publish(specs(BATCH // 2))
    await harness.tools.publish([*specs(2, "Reads more."), definition("files", "new").spec])
    assert len(harness.changes) == 2
    assert [
        len(part) for part in (harness.changes[1].added, harness.changes[1].changed, harness.changes[1].removed)
    ] == [
        1,
        2,
        BATCH // 2 - 2,
    ]
    assert harness.tools.count == 3


async def test_many_changes_let_others_run_in_between_and_what_may_not_be_called_comes_first() -> None:
    harness = OffersHarness()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    await harness.tools.publish(specs(MANY))
    assert turns > 10
    assert len(harness.changes) > 10
    turned = [
        replace(spec, state=ToolState.QUARANTINED) if at % 2 else spec for at, spec in enumerate(specs(MANY, "?"))
    ]
    del harness.changes[:]
    await harness.tools.publish(turned)
    states = [spec.state for change in harness.changes for spec in change.changed]
    assert set(states[: MANY // 2 - BATCH]) == {ToolState.QUARANTINED}
    assert set(states[MANY // 2 + BATCH :]) == {ToolState.ACTIVE}
    await harness.tools.publish(())
    assert harness.catalog.all() == ()
    assert harness.tools.count == 0
    running.cancel()


async def test_a_large_definition_is_the_last_of_its_batch() -> None:
    harness, small = OffersHarness(), specs(6)
    large = {"type": "object", "title": "x" * 2 * SMALL_CHARS}
    await harness.tools.publish(
        replace(each, input_schema=large) if at in {1, 2} else each for at, each in enumerate(small)
    )
    assert [[spec.name[-1] for spec in change.added] for change in harness.changes] == [
        ["0", "1"],
        ["2"],
        ["3", "4", "5"],
    ]


async def test_refused_tools_of_many_are_reported_and_affect_no_other() -> None:
    harness = OffersHarness()
    harness.catalog.register(replace(definition("other", "x").spec, name="files/t7"))
    problems = await harness.tools.publish(specs(MANY))
    assert len(problems) == 1
    assert "`files/t7` is not offered" in problems[0]
    assert harness.tools.count == MANY - 1
    await harness.tools.publish(())
    assert [spec.source for spec in harness.catalog.all()] == ["other"]
