"""Step 6 for LangChain tools, which run in their source's worker processes; async ones on the event loop with `in_hub`.

Cancelling a call, as the runtime does at its deadline, cancels the coroutine or kills the worker. Arguments that only
the hub may set are removed from the caller's arguments and set from the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Tracer

from toolhub_service.adapters.langchain.failures import (
    WorkerTrace,
    no_worker,
    refusal_of,
    reported_failure,
    worker_death,
)
from toolhub_service.adapters.langchain.frames import FrameTooLarge, encode
from toolhub_service.adapters.langchain.kind import Injected, LangChainSource, LoadTerms
from toolhub_service.adapters.langchain.run_spans import is_recording, make_spans
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.adapters.langchain.worker_pool import PoolClosed
from toolhub_service.adapters.langchain.worker_process import WorkerFailed
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import is_cancelled, not_loaded, tool_failed
from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.sandbox.request import too_weak
from toolhub_service.schema.repaired_json import repair_evidence
from toolhub_service.sections.source_config import SourceValues

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool


class LangChainOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self.adapter = LangChainAdapter(
            redact=deps.redactor.text, tracer=deps.tracer, met_problem=deps.observer.on_problem
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
            met_problem=self._deps.observer.on_problem,
            hides=self._hides,
        )
        self.adapter.put(source)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)


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
        """`tracer`: makes spans of the runs inside a traced call; None: no spans. `met_problem`: called with the
        source's name and each exception of a tool, for the log."""
        super().__init__()
        self._troubled = met_problem
        self._redact = redact
        self._tracer = tracer

    def put(self, source: LangChainToolSource) -> None:
        """Call the tools of this source from now on; one of the same name is replaced, not closed."""
        self._sources[source.name] = source

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source, tool = self._find_tool(call.spec)
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
        self._find_tool(call.spec)
        spec = call.spec
        what = "changes nothing" if spec.annotations.read_only else "does not declare what it changes"
        return (f"Calls the LangChain tool {spec.resource_id} of the source {spec.source}, which {what}.",)

    def resumes(self, spec: ToolSpec) -> bool:
        return False

    def _find_tool(self, spec: ToolSpec) -> tuple[LangChainToolSource, BoundTool]:
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
            raise (worker_death(call) if failed.was_asked else no_worker(tool)) from failed
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
