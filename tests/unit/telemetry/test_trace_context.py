from __future__ import annotations

import pytest

from toolhub_service.telemetry import trace_context
from toolhub_service.telemetry.trace_context import TraceContext, attached, extract, inject, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("header", [PARENT, f"00-{TRACE}-{SPAN}-03", f"cc-{TRACE}-{SPAN}-01-what-the-future-brings"])
def test_a_sampled_parent_is_understood(header: str) -> None:
    assert parse(header) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "header",
    [
        *("", "00", PARENT + "-x", PARENT.upper(), PARENT[:-1], " " + PARENT, PARENT + "\n", PARENT.replace("-", "_")),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-0g"),
    ],
)
def test_a_malformed_parent_is_no_parent(header: str) -> None:
    assert parse(header) is None


def test_state_and_baggage_travel_with_their_parent_and_not_without_it() -> None:
    metadata: list[tuple[str, str | bytes]] = [
        ("traceparent", PARENT),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("baggage", "k=v"),
        ("x-bin", b"1"),
    ]
    context = extract(metadata)
    assert context == TraceContext(TRACE, SPAN, True, "a=1,b=2", "k=v")
    assert extract(metadata[1:]) is None
    assert extract([("traceparent", PARENT), ("traceparent", PARENT)]) is None


def test_oversized_or_unprintable_state_and_baggage_are_dropped() -> None:
    context = parse(PARENT, "a=" + "1" * 600, "k=v\nx")
    assert context == TraceContext(TRACE, SPAN, True)


def test_the_injected_context_is_the_current_one() -> None:
    outgoing: list[tuple[str, str]] = []
    inject(outgoing)
    assert outgoing == []
    context = TraceContext(TRACE, SPAN, False, "a=1", "k=v")
    with attached(context):
        inject(outgoing)
        assert trace_context.current_trace_id() == TRACE
    assert outgoing == [("traceparent", f"00-{TRACE}-{SPAN}-00"), ("tracestate", "a=1"), ("baggage", "k=v")]
    assert trace_context.current_traceparent() == ""
