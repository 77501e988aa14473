"""OpenTelemetry traces: RPC → nine steps → execute_tool.

Sampling is decided once, when the RPC arrives (the caller's flag, otherwise a share of trace ids, like the SDK's
TraceIdRatioBased); an unsampled trace costs a few dictionary and context operations and no span. Step spans are made
when the call has settled, from the steps' durations; only the execute step and its execute_tool span are live, so that
the adapter's requests carry the context. Without an exporter nothing is recorded and the caller's context is propagated
unchanged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
)

from toolhub_service.domain.call import GrantedCall, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.result import SettledCall, StepName, StepTime
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry import names, trace_context
from toolhub_service.telemetry.trace_context import Beginning, Metadata, TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from toolhub_service.telemetry.span_recording import SpanRecording

# Status codes that are the server's fault (RPC semantic conventions, gRPC).
_SERVER_ERRORS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
_AFTERWARDS: Final = frozenset({StepName.ATTACH_EVIDENCE, StepName.RECORD})
UNTRACED: Final = nullcontext()


class RpcTrace(msgspec.Struct, eq=False):
    """An RPC's position in its trace, without a span when it is not recorded."""

    place: TraceContext | Beginning
    span: Span | None
    redactor: Redactor
    executing: dict[str, Span] = msgspec.field(default_factory=dict)
    """Open execute steps by call id."""
    attempts: dict[str, int] = msgspec.field(default_factory=dict)
    is_one_call: bool = True
    """False for a session, which has many calls: its span names no tool."""

    @property
    def context(self) -> TraceContext:
        return self.place.context if isinstance(self.place, Beginning) else self.place

    @property
    def trace_id(self) -> str:
        return self.context.trace_id

    def end(self, code: str, message: str = "", principal: Principal | None = None) -> None:
        """End the RPC with a status name such as `OK`; empty for other work."""
        span = self.span
        if span is None:
            return
        if code:
            span.set_attribute(names.ATTRIBUTE_RPC_STATUS, code)
        if principal is not None:
            span.set_attribute(names.ATTRIBUTE_PRINCIPAL, self.redactor.text(principal.id))
            for name, fact in principal.facts.items():
                span.set_attribute(f"toolhub.{name}", self.redactor.text(fact))
        if code in _SERVER_ERRORS:
            span.set_attribute(names.ATTRIBUTE_ERROR, code)
            span.set_status(Status(StatusCode.ERROR, self.redactor.text(message)))
        for step in self.executing.values():  # Calls that were cut off by the end of the RPC.
            step.end()
        span.end()


_RPC: ContextVar[RpcTrace | None] = ContextVar("toolhub_rpc_trace", default=None)


class Tracing:
    """Makes and exports the hub's spans."""

    def __init__(
        self,
        *,
        service_name: str,
        service_version: str = "",
        otlp_endpoint: str | None = None,
        sample_ratio: float = 0.01,
        redactor: Redactor,
        exporter: SpanExporter | None = None,
    ) -> None:
        """`sample_ratio` in 0..1 applies to traces that start here; a caller's decision is kept.

        Raises HubFailure OTLP_EXPORTER_MISSING when an endpoint is given and the `otlp` extra is not installed.
        """
        self._redactor = redactor
        self._bound = round(sample_ratio * (1 << 64))
        self._recording: SpanRecording | None = None
        self._tracer: Tracer = trace.NoOpTracer()
        if exporter is not None or otlp_endpoint:
            from toolhub_service.telemetry.span_recording import SpanRecording, otlp_exporter

            exporter = exporter or otlp_exporter(otlp_endpoint or "")
            self._recording = SpanRecording(exporter, service_name, service_version)
            self._tracer = self._recording.tracer

    @property
    def tracer(self) -> Tracer | None:
        """Return the tracer for spans inside an execution; None when nothing is recorded."""
        return self._tracer if self._recording else None

    def flush(self) -> None:
        """Send queued spans. Blocks for at most 10 s."""
        if self._recording is not None:
            self._recording.flush()

    def close(self) -> None:
        """Send queued spans and stop. Blocks: call it from a thread."""
        if self._recording is not None:
            self._recording.close()

    def rpc(self, method: str, metadata: Metadata, attributes: Mapping[str, str] | None = None) -> RpcTrace:
        """Begin an RPC; `method` is `package.Service/Method`. The trace is current from here on.

        `attributes` replace gRPC's on its span.
        """
        caller = None
        for name, _ in metadata:
            if name == "traceparent":  # few callers send one, and most RPCs avoid parsing it
                caller = trace_context.extract(metadata)
                break
        trace_id = random.getrandbits(128) or 1 if self._recording and caller is None else 0
        # The lower 64 bits, like TraceIdRatioBased: so other parts of a system decide alike.
        sampled = (trace_id & 0xFFFFFFFFFFFFFFFF) < self._bound if caller is None else caller.sampled
        if self._recording is not None and sampled:
            self._recording.ids.next_trace_id = trace_id
            opened = self._open_rpc_span(method, caller, attributes)
        else:
            opened = RpcTrace(caller or Beginning(), None, self._redactor)
        trace_context.CURRENT.set(opened.place)
        _RPC.set(opened)
        return opened

    def _open_rpc_span(self, method: str, caller: TraceContext | None, given: Mapping[str, str] | None) -> RpcTrace:
        attributes = self._redact_attributes(
            given or {names.ATTRIBUTE_RPC_SYSTEM: "grpc", names.ATTRIBUTE_RPC_METHOD: method}
        )
        method = method if given is None else self._redactor.text(method)
        parent = (
            Context() if caller is None else trace.set_span_in_context(NonRecordingSpan(_remote(caller)), Context())
        )
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, attributes)
        opened = RpcTrace(_context_of(span, caller), span, self._redactor)
        opened.is_one_call = not method.endswith("/InvokeSession")
        return opened

    @contextmanager
    def work(self, name: str, submitter: str, attributes: Mapping[str, str | int]) -> Iterator[None]:
        """Run work outside of any RPC in its own trace, current inside, with a link to the span of `submitter`.

        `submitter` is a W3C traceparent, or empty. The work is recorded if its RPC was.
        """
        caller = trace_context.parse(submitter)
        trace_id = random.getrandbits(128) or 1
        sampled = caller.sampled if caller is not None else (trace_id & 0xFFFFFFFFFFFFFFFF) < self._bound
        span = None
        if self._recording is not None and sampled:
            links = [] if caller is None else [Link(_remote(caller))]
            self._recording.ids.next_trace_id = trace_id
            span = self._tracer.start_span(
                name, Context(), SpanKind.CONSUMER, self._redact_attributes(attributes), links
            )
            context = _context_of(span, None)
        else:
            context = TraceContext(f"{trace_id:032x}", f"{random.getrandbits(64) or 1:016x}", False)
        opened = RpcTrace(context, span, self._redactor)
        token = _RPC.set(opened)
        try:
            with trace_context.attached(context):
                yield
        finally:
            _RPC.reset(token)
            opened.end("")

    def executing(self, call: GrantedCall) -> AbstractContextManager[object]:
        """Make the span of one attempt current. Yields UNTRACED when the trace is not recorded."""
        rpc = _RPC.get()
        return UNTRACED if rpc is None or rpc.span is None else self._execution(rpc, call)

    @contextmanager
    def _execution(self, rpc: RpcTrace, call: GrantedCall) -> Iterator[Span]:
        call_id, tool = call.call.call_id, call.spec.name
        step = rpc.executing.get(call_id)
        if step is None:
            step = rpc.executing[call_id] = self._start(names.STEP_SPANS[StepName.EXECUTE], rpc.span, call_id)
        attempt = rpc.attempts[call_id] = rpc.attempts.get(call_id, 0) + 1
        attributes: dict[str, str | int] = {
            names.ATTRIBUTE_OPERATION: "execute_tool",
            names.ATTRIBUTE_TOOL: tool,
            names.ATTRIBUTE_CALL: call_id,
            names.ATTRIBUTE_TOOL_TYPE: "function",
            names.ATTRIBUTE_TOOL_KIND: call.spec.kind.value,
            names.ATTRIBUTE_ATTEMPT: attempt,
        }
        parent = trace.set_span_in_context(step, Context())
        span = self._tracer.start_span(
            names.SPAN_EXECUTE_TOOL.format(tool=tool), parent, SpanKind.INTERNAL, self._redact_attributes(attributes)
        )
        try:
            with (
                trace_context.attached(_context_of(span, rpc.context)),
                trace.use_span(span, record_exception=False, set_status_on_exception=False),
            ):
                yield span
        except ToolFailure as failure:
            _mark_failed(span, failure.error.kind)
            raise
        except Exception:
            _mark_failed(span, ErrorKind.INTERNAL)
            raise
        finally:
            span.end()

    def record_steps(self, settled: SettledCall) -> None:
        """Make the spans of a call's steps from their durations."""
        rpc = _RPC.get()
        if rpc is None or rpc.span is None:
            return
        call_id, error = settled.call.call_id, settled.result.error
        if rpc.is_one_call:
            outcome = "ok" if error is None else error.kind.value
            attributes = {names.ATTRIBUTE_TOOL: settled.call.tool, names.ATTRIBUTE_OUTCOME: outcome}
            if (subject := settled.call.subject) != settled.call.principal.id:
                attributes["toolhub.subject"] = subject
            rpc.span.set_attributes(self._redact_attributes(attributes))
        # Steps are timed by the monotonic clock, and spans need the wall clock.
        wall_ns = time.time_ns() - time.perf_counter_ns()
        failed = _failed_step(settled.steps) if error is not None else None
        live = rpc.executing.pop(call_id, None)
        rpc.attempts.pop(call_id, None)
        for step, start_ns, end_ns in settled.steps:
            if step is StepName.EXECUTE and live is not None:
                span, live = live, None
            else:
                span = self._start(names.STEP_SPANS[step], rpc.span, call_id, wall_ns + start_ns)
            if step is StepName.CHECK_POLICY and settled.verdict is not None:
                span.set_attribute(names.ATTRIBUTE_RULE, self._redactor.text(settled.verdict.rule_id))
            if error is not None and step is failed:
                _mark_failed(span, error.kind)
            span.end(wall_ns + end_ns)
        if live is not None:
            live.end()

    def _start(self, name: str, parent: Span | None, call_id: str, start_ns: int | None = None) -> Span:
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN, Context())
        attributes = self._redact_attributes({names.ATTRIBUTE_CALL: call_id})
        return self._tracer.start_span(name, context, SpanKind.INTERNAL, attributes, start_time=start_ns)

    def _redact_attributes(self, attributes: Mapping[str, str | int]) -> dict[str, str | int]:
        text = self._redactor.text
        return {name: text(value) if isinstance(value, str) else value for name, value in attributes.items()}


def _mark_failed(span: Span, kind: ErrorKind) -> None:
    span.set_attribute(names.ATTRIBUTE_ERROR, kind.value)
    span.set_status(Status(StatusCode.ERROR))


def _failed_step(steps: tuple[StepTime, ...]) -> StepName | None:
    """Return the last step before those that every call takes."""
    walked = [step for step, _, _ in steps if step not in _AFTERWARDS]
    return walked[-1] if walked else None


def _remote(caller: TraceContext) -> SpanContext:
    state = TraceState.from_header([caller.state]) if caller.state else None
    return SpanContext(int(caller.trace_id, 16), int(caller.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED), state)


def _context_of(span: Span, before: TraceContext | None) -> TraceContext:
    own = span.get_span_context()
    state, baggage = (before.state, before.baggage) if before is not None else ("", "")
    return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", True, state, baggage)
