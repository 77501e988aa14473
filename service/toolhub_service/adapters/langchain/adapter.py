"""Step 6 for LangChain tools, which run in their source's worker processes; async ones on the event loop with `in_hub`.

Cancelling a call, as the runtime does at its deadline, cancels the coroutine or kills the worker. Arguments that only
the hub may set are removed from the caller's arguments and set from the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from toolhub_service.adapters.langchain.kind import Injected, LangChainSource, LoadTerms
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.adapters.langchain.worker import FrameTooLarge, encode
from toolhub_service.adapters.langchain.worker_process import PoolClosed, WorkerFailed
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import is_cancelled, not_loaded, tool_failed, without_paths
from toolhub_service.config.source_config import SourceValues
from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.guards.secrets import Redact
from toolhub_service.sandbox.request import too_weak
from toolhub_service.schema.repaired_json import repair_evidence

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool


# LangChain tools of sources.yaml. Only this module of the app imports LangChain.


class LangChainOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self.adapter = LangChainAdapter(
            redact=deps.redactor.text, tracer=deps.tracer, met_problem=deps.observer.met_problem
        )
        self._deps = deps
        self._hides = deps.hides()

    def endpoint(self, name: str, entry: LangChainSource) -> str:
        return LoadTerms(entry.load, entry_points=entry.entry_points).endpoint

    def open(self, name: str, entry: LangChainSource) -> OpenedSource:
        values = SourceValues(self._deps.redactor)
        values.learn_within(entry.args)
        source = LangChainToolSource(
            name,
            entry,
            self._deps.trusted_namespaces,
            redact=self._deps.redactor.text,
            secrets=values.secrets,
            met_problem=self._deps.observer.met_problem,
            hides=self._hides,
        )
        self.adapter.put(source)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)


# Spans of the runs inside a call, below the current span, named by OpenTelemetry's GenAI conventions.

OPERATION: Final = "gen_ai.operation.name"
TOOL: Final = "gen_ai.tool.name"
ERROR: Final = "error.type"


def is_recording() -> bool:
    """Return whether the running call is traced."""
    return trace.get_current_span().is_recording()


def make_spans(tracer: Tracer, runs: Sequence[Sequence[Any]], redact: Callable[[str], str]) -> None:
    """Make one span for each record of `RunRecorder.records`, parents first, with names only and no values."""
    root = trace.get_current_span()
    made: list[Span] = []
    for kind, name, start_ns, end_ns, parent, error in runs:
        shown = redact(name)
        above = made[parent] if 0 <= parent < len(made) else root
        attributes = {OPERATION: kind} | ({TOOL: shown} if kind == "execute_tool" else {})
        span = tracer.start_span(
            f"{kind} {shown}".rstrip(),
            trace.set_span_in_context(above),
            SpanKind.INTERNAL,
            attributes,
            start_time=start_ns,
        )
        if error:
            span.set_attribute(ERROR, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)
        made.append(span)


# `ToolException` is LangChain's way to explain an error to a model, so its text is passed on, truncated and redacted,
# as is the text of a result whose status or wording is an error. Of any other exception only the type and the text,
# redacted and without paths, are passed on; the traceback goes only to the log.

EXCERPT_CHARS: Final = 2000


class WorkerTrace(Exception):
    """The traceback of an exception in a worker, as text, for the log."""


def reported_failure(tool: str, text: str, redact: Redact) -> ToolFailure:
    """The tool itself reports that it failed."""
    said = excerpt(redact(text), EXCERPT_CHARS).strip() or "it does not say why"
    return refuse(
        ErrorKind.EXECUTION_ERROR,
        f"{tool} failed and says: {said}\nChange the arguments, or use another tool.",
    )


def tool_raised(call: GrantedCall, kind: str, text: str, redact: Redact) -> ToolFailure:
    """The tool raised an exception after it had begun; its effects up to then remain."""
    said = excerpt(without_paths(redact(text)), EXCERPT_CHARS).strip().rstrip(".")
    partly = "" if call.safe_to_repeat else " It may have had a part of its effect: check that first."
    message = f"{call.spec.name} failed with {kind}{f': {said}' if said else ''}.{partly}"
    advice = "Change the arguments, or use another tool. Operators find the error in the log."
    return refuse(ErrorKind.EXECUTION_ERROR, f"{message}\n{advice}", exception=kind)


def refusal_of(call: GrantedCall, reply: Mapping[str, Any], redact: Redact, max_bytes: int) -> ToolFailure:
    """Return the failure for a reply with `failed`."""
    tool = call.spec.name
    match reply["failed"]:
        case "tool":
            return reported_failure(tool, str(reply.get("message", "")), redact)
        case "exception":
            return tool_raised(call, str(reply.get("type", "")), str(reply.get("message", "")), redact)
        case "input":
            return _invalid(tool, reply.get("violations", ()), redact)
        case "too_large":
            message = f"{tool} returned more than {max_bytes} bytes: request less."
            return refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=max_bytes)
        case "no_result":
            return refuse(ErrorKind.EXECUTION_ERROR, f"{tool} cannot be used here: {reply.get('message', '')}.")
        case "absent":
            return not_loaded(tool)
    return tool_failed(tool)


def no_worker(tool: str) -> ToolFailure:
    message = (
        f"No process could be started for {tool}. Try later, or use another tool. Operators find the error in the log."
    )
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def died(call: GrantedCall) -> ToolFailure:
    """The worker ended before it answered."""
    tool = call.spec.name
    if call.safe_to_repeat:
        message = f"The process of {tool} ended before it answered. Try other arguments or another tool."
        return refuse(ErrorKind.EXECUTION_ERROR, message)
    message = (
        f"The process of {tool} ended before it answered, and the call may have had its effect. Check that before "
        "you call it again."
    )
    return refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause=ErrorKind.EXECUTION_ERROR.value)


def _invalid(tool: str, reported: Any, redact: Redact) -> ToolFailure:
    violations = tuple(Violation(path=path, keyword=kind, message=redact(text)) for path, kind, text in reported)
    first = f" {violations[0].message} (`{violations[0].path or '/'}`)." if violations else ""
    message = f"{tool} rejected its arguments.{first} Correct them and call again."
    return refuse(ErrorKind.INVALID_INPUT, message, violations=violations)


_MATCHED_CHARS: Final = 64 * 1024  # of a text result, matched against an error pattern


class LangChainAdapter(SourceAdapter[LangChainToolSource]):
    """Implements Adapter for all LangChain sources; they may be added and removed while calls run."""

    kind = ToolKind.LANGCHAIN

    def __init__(
        self,
        *,
        redact: Callable[[str], str],
        tracer: Tracer | None = None,
        met_problem: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        """`tracer`: makes spans of the runs inside a traced call; None: no spans. `troubled`: called with the source's
        name and each exception of a tool, for the log."""
        super().__init__()
        self._troubled = met_problem
        self._redact = redact
        self._tracer = tracer

    def put(self, source: LangChainToolSource) -> None:
        """Call the tools of this source from now on; one of the same name is replaced, not closed."""
        self._sources[source.name] = source

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source, tool = self._found(call.spec)
        level = await source.level_of(tool)
        if refusal := too_weak(call.spec.name, level, call.verdict.constraints.sandbox.minimum_of(call.spec.name)):
            raise refusal
        request = self._request(call, source, tool)
        # The hub's own process cannot be confined, which `level_of` has already reported.
        if source.runs_in_hub(tool):
            reply = await self._on_loop(call, source, tool, request)
        else:
            reply = await self._in_worker(call, source, request)
        if self._tracer is not None and reply.get("runs"):
            make_spans(self._tracer, reply["runs"], self._redact)
        if self._troubled is not None and reply.get("failed") == "exception" and "cause" in reply:
            self._troubled(source.name, reply["cause"])
        if "failed" in reply:
            raise refusal_of(call, reply, self._redact, source.max_result_bytes) from reply.get("cause")
        value, finds_error = reply["value"], source.overrides.finds_error(call.spec.resource_id)
        if reply["status"] == "error" or (finds_error is not None and finds_error(value["text"][:_MATCHED_CHARS])):
            raise reported_failure(call.spec.name, value["text"], self._redact)
        held = {"confinement": level or "", "in_hub": str(source.runs_in_hub(tool)).lower()}
        summary = f"Called {call.spec.name}."
        proof = Evidence(EvidenceType.TOOL, call.call.call_id, summary, attributes=held)
        return Outcome(value=value, evidence=(proof, *repair_evidence(call.call.call_id, tuple(reply["repairs"]))))

    def effects(self, call: GrantedCall) -> Sequence[str]:
        self._found(call.spec)
        spec = call.spec
        what = "changes nothing" if spec.annotations.read_only else "does not declare what it changes"
        return (f"Calls the LangChain tool {spec.resource_id} of the source {spec.source}, which {what}.",)

    def resumes(self, spec: ToolSpec) -> bool:
        return False

    def _found(self, spec: ToolSpec) -> tuple[LangChainToolSource, BoundTool]:
        source = self._sources.get(spec.source)
        tool = source.tool(spec.resource_id) if source is not None else None
        if source is None or tool is None or tool.problem:
            raise not_loaded(spec.name)
        return source, tool

    def _request(self, call: GrantedCall, source: LangChainToolSource, tool: BoundTool) -> dict[str, Any]:
        asked = call.call
        return tool.request(
            call.args,
            {name: _injected_value(asked, what) for name, what in source.entry.inject.items()},
            call_id=asked.call_id,
            metadata={"toolhub_call_id": asked.call_id, "toolhub_request_id": asked.context.request_id},
            traced=self._tracer is not None and is_recording(),
        )

    async def _on_loop(
        self, call: GrantedCall, source: LangChainToolSource, tool: BoundTool, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            return await tool.ask(request, source.max_result_bytes)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            # A CancelledError that the tool raises itself would leave the caller without an answer.
            raise tool_failed(call.spec.name) from error

    async def _in_worker(
        self, call: GrantedCall, source: LangChainToolSource, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        tool = call.spec.name
        try:
            reply: dict[str, Any] = await source.pool.ask(encode(request))
        except PoolClosed as closed:
            raise not_loaded(tool) from closed
        except WorkerFailed as failed:
            # A worker that ended before it was asked has done nothing, so the call can be repeated.
            raise (died(call) if failed.was_asked else no_worker(tool)) from failed
        except (FrameTooLarge, ValueError) as error:
            raise tool_failed(tool) from error
        trace = reply.pop("trace", "")
        if trace:
            reply["cause"] = WorkerTrace(trace)
        return reply


def _injected_value(call: Call, what: Injected) -> str:
    """Return the call's value for an injected argument; empty where the call has none."""
    if what == "principal":
        return call.principal.id
    value: str = call.call_id if what == "call_id" else getattr(call.context, what)
    return value
