"""Each record that a former version stored is read, through the port of its store, as that version read it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.upgrade import kept
from tests.upgrade.conftest import FormerData
from tests.upgrade.records import opened_stores, read_records

KINDS = {"jobs": 13, "histories": 13, "approvals": 9, "keys": 3, "artifacts": 2, "pins": 6, "uses": 5}
"""How many records of each kind were kept."""


@pytest.mark.promise("upgrade.records")
async def test_records_of_a_former_version_are_read_as_it_read_them(former_data: FormerData) -> None:
    expected = former_data.expected["records"]
    async with opened_stores(former_data.settings, former_data.data) as stores:
        found = await read_records(stores, kept.KEYS, former_data.expected["artifacts"].values())
    assert {kind: len(records) for kind, records in expected.items()} == KINDS
    assert differences(expected, found) == []


def test_fields_that_are_lost_changed_or_invented_are_reported() -> None:
    stored = {"id": "a", "parts": [{"n": 1}], "note": ""}
    assert differences(stored, {"id": "a", "parts": [{"n": 1}], "note": "", "added": None}) == []
    assert differences(stored, {"id": "b", "parts": [{"n": 2}], "added": 1}) == [
        "/id: 'a' became 'b'",
        "/parts/0/n: 1 became 2",
        "/note: '' became None",
        "/added: None became 1",
    ]
    assert differences(stored, {**stored, "parts": []}) == ["/parts: [{'n': 1}] became []"]


def differences(then: Any, now: Any, place: str = "") -> list[str]:
    """Where they differ. A field that records have only now must be empty in one that was stored without it."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [*then, *(name for name in now if name not in then and now[name])]
        return [line for name in names for line in differences(then.get(name), now.get(name), f"{place}/{name}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            line
            for number, (before, after) in enumerate(zip(then, now, strict=True))
            for line in differences(before, after, f"{place}/{number}")
        ]
    return [] if then == now else [f"{place}: {then!r} became {now!r}"]
