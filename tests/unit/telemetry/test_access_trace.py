"""What is kept of refused identity and of reads of the audit log, and how much of it at most."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import LogCapture

from tests.fakes.audit_log import MemoryAuditLog
from tests.fakes.clock import ManualClock
from toolhub_service.domain.event import Event, EventType
from toolhub_service.telemetry.access_trace import OTHERS, PEERS_MAX, AccessTrace
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.transport.interceptors.auth import peer_address

METHOD = "/toolhub.v1.ToolService/Invoke"


class TraceHarness:
    def __init__(self) -> None:
        self.audit = MemoryAuditLog()
        self.logged = LogCapture()
        log = structlog.wrap_logger(None, [self.logged], structlog.make_filtering_bound_logger(0))
        self.trace = AccessTrace(self.audit, Metrics(version="1"), log, ManualClock())

    def events(self) -> list[Event]:
        return [chained.event for chained in self.audit.events]


async def test_flood_from_made_up_peers_is_bounded_and_loses_no_count() -> None:
    traced = TraceHarness()
    for number in range(50_000):
        traced.trace.count_refusal(f"2001:db8:{number:x}::/64", METHOD, "CREDENTIAL_REFUSED")
    assert len(traced.logged.entries) == PEERS_MAX + 1
    assert traced.events() == []
    traced.trace.close()
    counts = {event.attributes["peer"]: int(event.attributes["count"]) for event in traced.events()}
    assert len(counts) == PEERS_MAX + 1
    assert counts[OTHERS] == 50_000 - PEERS_MAX


async def test_principal_is_named_whatever_strangers_send() -> None:
    traced = TraceHarness()
    for number in range(PEERS_MAX):
        traced.trace.count_refusal(f"192.0.2.{number}", METHOD, "CREDENTIAL_MISSING")
    traced.trace.count_refusal("198.51.100.1", METHOD, "ROLE_MISSING", principal="robot")
    traced.trace.close()
    last = traced.events()[-1]
    assert (last.type, last.principal, last.attributes["peer"]) == (EventType.ROLE_REFUSED, "robot", OTHERS)


async def test_peers_behind_the_bound_do_not_have_to_wait_for_one_another() -> None:
    traced = TraceHarness()
    waits = [traced.trace.count_refusal(str(number), METHOD, "CREDENTIAL_MISSING") for number in range(PEERS_MAX + 100)]
    assert set(waits) == {0.0}


async def test_events_that_the_audit_log_refuses_are_counted() -> None:
    traced = TraceHarness()
    traced.audit.broken = True
    traced.trace.count_refusal("192.0.2.1", METHOD, "CREDENTIAL_MISSING")
    await traced.trace.audit_read("boss", "ListEvents", "{}", 5)
    traced.trace.flush()
    assert [entry["event"] for entry in traced.logged.entries] == [
        "access_refused",
        "access_not_recorded",
        "access_not_recorded",
    ]
    traced.audit.broken = False
    traced.trace.count_refusal("192.0.2.1", METHOD, "CREDENTIAL_MISSING")
    traced.trace.close()
    assert [(event.type.value, event.attributes["count"]) for event in traced.events()] == [
        ("AUTH_FAILED", "2"),
        ("AUDIT_READ", "1"),
    ]
    assert traced.events()[1].attributes["events"] == "5"


async def test_filters_without_end_are_bounded_and_counted() -> None:
    traced = TraceHarness()
    for number in range(PEERS_MAX + 50):
        await traced.trace.audit_read("boss", "ListEvents", f'{{"tool": "{number}"}}', 1)
    traced.trace.close()
    assert len(traced.events()) == PEERS_MAX + 2
    assert sum(int(event.attributes["events"]) for event in traced.events()) == PEERS_MAX + 50


@pytest.mark.parametrize(
    ("spans", "from_unix_ms", "to_unix_ms"),
    [
        ([(5, 9), (3, 7)], "3", "9"),
        ([(5, 9), (7, 0)], "5", None),
        ([(5, 0), (5, 9)], "5", None),
        ([(0, 9), (5, 12)], None, "12"),
    ],
)
async def test_repeated_reads_name_the_widest_span_of_time(
    spans: list[tuple[int, int]], from_unix_ms: str | None, to_unix_ms: str | None
) -> None:
    traced = TraceHarness()
    for span in [(1, 2), *spans]:
        await traced.trace.audit_read("boss", "ListEvents", "{}", 1, *span)
    traced.trace.close()
    first, repeated = (event.attributes for event in traced.events())
    assert (first["from_unix_ms"], first["to_unix_ms"]) == ("1", "2")
    assert (repeated.get("from_unix_ms"), repeated.get("to_unix_ms")) == (from_unix_ms, to_unix_ms)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:46672", "192.0.2.1"),
        ("ipv6:%5B::1%5D:37168", "::/64"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:37168", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:37168", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:37168", "192.0.2.1"),
        ("unix:", "unix"),
        ("unix-abstract:hub", "unix"),
        ("", "unknown"),
        ("what is this", "unknown"),
    ],
)
def test_peer_is_its_address_without_a_port(peer: str, address: str) -> None:
    assert peer_address(peer) == address
