"""The newest events are found without reading what is before them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.cli.audit.events import Moment
from toolhub_service.cli.audit.reading import events, newest
from toolhub_service.cli.connection.client import Connection
from toolhub_service.cli.connection.lost_answers import Sent


@dataclass
class FakeAuditStub:
    """AuditService.ListEvents over events of given ages; counts the events that it has sent."""

    ages_s: list[float]
    events_sent: int = 0
    sent: Sent = field(default_factory=Sent)
    asked: int = 0
    timeout_s: float = 1.0
    metadata: tuple[()] = ()
    now_ns: int = field(default_factory=time.time_ns)
    call = Connection.call
    pages = Connection.pages

    @property
    def audit(self) -> Any:
        return SimpleNamespace(ListEvents=self.list)

    def list(self, request: pb.ListEventsRequest, **_: object) -> pb.ListEventsResponse:
        self.asked += 1
        since_ns = request.filter.since.ToNanoseconds() if request.filter.HasField("since") else 0
        fitting = [n for n, age_s in enumerate(self.ages_s) if self.now_ns - age_s * 1e9 >= since_ns]
        begin = int(request.page_token or 0)
        page = fitting[begin : begin + request.page_size]
        self.events_sent += len(page)
        more = str(begin + len(page)) if begin + len(page) < len(fitting) else ""
        return pb.ListEventsResponse(events=[event_pb2.Event(sequence=n) for n in page], next_page_token=more)


def sequences(log: FakeAuditStub, count: int) -> list[int]:
    found = newest(partial(events, cast("Connection", log)), event_pb2.EventFilter(principal="x"), count)
    return [event.sequence for event in found]


def test_a_busy_log_sends_only_its_end() -> None:
    log = FakeAuditStub([10_000 - n for n in range(10_000)])
    assert sequences(log, 20) == list(range(9_980, 10_000))
    assert log.events_sent < 100


@pytest.mark.parametrize("age_s", [1, 100, 10_000, 1e6, 1e8])
def test_old_events_are_found_at_any_age(age_s: float) -> None:
    log = FakeAuditStub([age_s + n for n in range(30, 0, -1)])
    assert sequences(log, 20) == list(range(10, 30))
    assert log.asked < 10


def test_fewer_events_than_asked_for_are_all_shown() -> None:
    assert sequences(FakeAuditStub([5e7, 3, 2]), 20) == [0, 1, 2]
    assert sequences(FakeAuditStub([]), 20) == []


def test_a_count_of_zero_asks_nothing() -> None:
    log = FakeAuditStub([1])
    assert sequences(log, 0) == []
    assert log.asked == 0


@pytest.mark.parametrize(("text", "hour", "second"), [("09:00", 9, 0), ("23:59:30", 23, 30)])
def test_a_time_of_day_is_one_of_today(text: str, hour: int, second: int) -> None:
    found = Moment().convert(text, None, None)
    assert (found.hour, found.second, found.tzinfo) == (hour, second, UTC)
    assert abs(found.date() - datetime.now(UTC).date()) <= timedelta(days=1)


@pytest.mark.parametrize("text", ["9", "25:00", "09:60", "now"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"09:00 \(today, UTC\)"):
        Moment().convert(text, None, None)
