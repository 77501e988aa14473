"""What a source offers, made ready for judgement."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.fakes.tool_sources import definition
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Definition
from toolhub_service.guards.descriptions import Finding
from toolhub_service.registry.offers import DEFINITION_MAX_CHARS, SMALL_CHARS, offers_of


def of_size(chars: int) -> Definition:
    return definition("files", "t", "x" * chars)


async def test_only_a_large_definition_is_judged_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def judge(_: JsonObject) -> tuple[Finding, ...]:
        threads.append(threading.current_thread())
        return ()

    sizes = 10, 2 * SMALL_CHARS
    offers = [*await offers_of("files", [of_size(chars) for chars in sizes], judge=judge)]
    assert [offer.digest for offer in offers] == [pin_digest("files", of_size(chars).remote) for chars in sizes]
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
    assert await offers_of("files", [of_size(chars) for chars in sizes], offers, judge=judge) == tuple(offers)
    assert len(threads) == 2


def _deep() -> Any:
    value: Any = "x"
    for _ in range(300):
        value = [value]
    return value


@pytest.mark.parametrize("what", ["x" * (DEFINITION_MAX_CHARS + 1), "half \ud800", float("nan"), _deep()])
async def test_what_cannot_be_kept_has_no_digest(what: Any) -> None:
    spec = definition("files", "t").spec
    (offer,) = await offers_of("files", [Definition(spec, {"name": "t", "description": what})])
    assert (offer.digest, offer.findings) == ("", ())
