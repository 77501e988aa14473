"""W3C Trace Context and Baggage: reading from incoming metadata, and propagation.

https://www.w3.org/TR/trace-context/ §3.2 (traceparent), §3.3 (tracestate); https://www.w3.org/TR/baggage/. A header
that breaks the rules is ignored as a whole, as the specification asks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeAlias

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE_CHARS: Final = 512
_BAGGAGE_BYTES: Final = 8_192
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_ZERO_TRACE: Final = "0" * 32
_ZERO_SPAN: Final = "0" * 16


class TraceContext(NamedTuple):
    """A position in a trace: this hub's, or the caller's."""

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    sampled: bool
    state: str = ""
    baggage: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def extract(metadata: Metadata) -> TraceContext | None:
    """Return the caller's context; None when there is none or it is malformed."""
    parent = state = baggage = ""
    for name, value in metadata:
        if name == "traceparent":
            if parent or not isinstance(value, str):
                return None  # Two traceparents count as none.
            parent = value
        elif name == "tracestate" and isinstance(value, str):
            # RFC 9110 §5.3: fields with one name are one list; §3.3 of the specification allows that for tracestate.
            state = f"{state},{value}" if state else value
        elif name == "baggage" and isinstance(value, str):
            baggage = f"{baggage},{value}" if baggage else value
    return parse(parent, state, baggage) if parent else None


def parse(traceparent: str, state: str = "", baggage: str = "") -> TraceContext | None:
    """Return the context of a traceparent header; None when it is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # §3.2.2: `ff` is forbidden; only later versions may have more after the flags; zeros are invalid ids.
    if version == "ff" or (version == "00" and rest) or trace_id == _ZERO_TRACE or span_id == _ZERO_SPAN:
        return None
    if len(state) > _STATE_CHARS or not _PRINTABLE.fullmatch(state):
        state = ""
    if len(baggage) > _BAGGAGE_BYTES or not _PRINTABLE.fullmatch(baggage):
        baggage = ""
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1), state, baggage)


class Beginning:
    """A trace that begins here and is not recorded: its ids are generated on first use, which few calls need."""

    __slots__ = ("_drawn",)
    _drawn: TraceContext

    @property
    def context(self) -> TraceContext:
        """Return the context, the same each time."""
        try:
            return self._drawn
        # An unset slot, instead of a field that every call would have to set though few use it.
        except AttributeError:
            # Zero is the one invalid value. Not from `secrets`: ids are not secret, and the system call costs more.
            ids = random.getrandbits(128) or 1, random.getrandbits(64) or 1
            self._drawn = TraceContext(f"{ids[0]:032x}", f"{ids[1]:016x}", False)
            return self._drawn


CURRENT: ContextVar[TraceContext | Beginning | None] = ContextVar("toolhub_trace", default=None)
"""Set when an RPC arrives, and never reset: it ends with the RPC's task."""


def current() -> TraceContext | None:
    """Return the context to which new work belongs."""
    found = CURRENT.get()
    return found.context if isinstance(found, Beginning) else found


class attached:  # noqa: N801 — used as a statement
    """Make the context current within the block."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: TraceContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._context)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


def current_traceparent() -> str:
    """Return the traceparent for outgoing requests; empty outside of any trace.

    It holds only trace ids: safe to send to any upstream.
    """
    context = current()
    return context.traceparent if context is not None else ""


def current_trace_meta() -> dict[str, str]:
    """Return `_meta` for MCP requests (SEP-414), empty outside of any trace: traceparent and tracestate.

    The baggage is left out, because it is the caller's own data.
    """
    context = current()
    if context is None:
        return {}
    meta = {"traceparent": context.traceparent}
    return meta | {"tracestate": context.state} if context.state else meta


def current_trace_id() -> str:
    """Return the trace id for logs and audit events; empty outside of any trace."""
    context = current()
    return context.trace_id if context is not None else ""


def inject(metadata: list[tuple[str, str]]) -> None:
    """Add the current context, including baggage, to the metadata of a call to another of the operator's services."""
    context = current()
    if context is None:
        return
    metadata.append(("traceparent", context.traceparent))
    if context.state:
        metadata.append(("tracestate", context.state))
    if context.baggage:
        metadata.append(("baggage", context.baggage))
