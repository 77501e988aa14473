"""Step 6 for LangChain tools: async ones on the event loop, all others in their source's worker processes.

Cancelling a call, as the runtime does at its deadline, cancels the coroutine or kills the worker. Arguments that only
the hub may set are dropped from what the caller sent and filled from the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Tracer

from toolhub_service.adapters.langchain import refusals
from toolhub_service.adapters.langchain.frames import FrameTooLarge, encode
from toolhub_service.adapters.langchain.pool import PoolClosed
from toolhub_service.adapters.langchain.run_spans import is_recording, make_spans
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.adapters.langchain.terms import injected_value
from toolhub_service.adapters.langchain.worker_process import WorkerFailed
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool

_MATCHED_CHARS: Final = 64 * 1024
"""Of a text result, as far as an error pattern looks."""


class LangChainAdapter:
    """Implements Adapter for all LangChain sources; they may come and go while calls run."""

    kind = ToolKind.LANGCHAIN

    def __init__(self, *, redact: Callable[[str], str], tracer: Tracer | None = None) -> None:
        """`tracer`: makes spans of what happens inside a call that is traced; None: nobody does."""
        self._redact = redact
        self._tracer = tracer
        self._sources: dict[str, LangChainToolSource] = {}

    def put(self, source: LangChainToolSource) -> None:
        """Call the tools of this source from now on; one of the same name is replaced, not closed."""
        self._sources[source.name] = source

    def remove(self, name: str) -> None:
        """Forget a source; it is not closed."""
        self._sources.pop(name, None)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source, tool = self._found(call.spec)
        request = self._request(call, source, tool)
        if tool.on_loop:
            reply = await self._on_loop(call, source, tool, request)
        else:
            reply = await self._in_worker(call, source, request)
        if self._tracer is not None and reply.get("runs"):
            make_spans(self._tracer, reply["runs"], self._redact)
        if "failed" in reply:
            raise refusals.refusal_of(call, reply, self._redact, source.max_result_bytes) from reply.get("cause")
        return self._outcome(call, source, reply)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        self._found(call.spec)
        spec = call.spec
        what = "changes nothing" if spec.annotations.read_only else "does not say beforehand what it changes"
        return (f"Calls the LangChain tool {spec.resource_id} of the source {spec.source}, which {what}.",)

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def resumes(self, spec: ToolSpec) -> bool:
        return False

    def _found(self, spec: ToolSpec) -> tuple[LangChainToolSource, BoundTool]:
        source = self._sources.get(spec.source)
        tool = source.tool(spec.resource_id) if source is not None else None
        if source is None or tool is None or tool.problem:
            raise refusals.absent(spec.name)
        return source, tool

    def _request(self, call: GrantedCall, source: LangChainToolSource, tool: BoundTool) -> dict[str, Any]:
        asked = call.call
        return tool.request(
            call.args,
            {name: injected_value(asked, what) for name, what in source.terms.inject.items()},
            call_id=asked.call_id,
            metadata={"toolhub_call_id": asked.call_id, "toolhub_request_id": asked.context.request_id},
            traced=self._tracer is not None and is_recording(),
        )

    async def _on_loop(
        self, call: GrantedCall, source: LangChainToolSource, tool: BoundTool, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            reply, cause = await tool.ask(request, source.max_result_bytes)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise refusals.unforeseen(call.spec.name) from error
        if cause is not None:
            reply["cause"] = cause
        return reply

    async def _in_worker(
        self, call: GrantedCall, source: LangChainToolSource, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        tool = call.spec.name
        try:
            reply: dict[str, Any] = await source.pool.ask(encode(request))
        except PoolClosed as closed:
            raise refusals.absent(tool) from closed
        except WorkerFailed as failed:
            raise (refusals.died(call) if failed.was_asked else refusals.no_worker(tool)) from failed
        except (FrameTooLarge, ValueError) as error:
            raise refusals.unforeseen(tool) from error
        trace = reply.pop("trace", "")
        if trace:
            reply["cause"] = refusals.WorkerTrace(trace)
        return reply

    def _outcome(self, call: GrantedCall, source: LangChainToolSource, reply: Mapping[str, Any]) -> Outcome:
        value, spec = reply["value"], call.spec
        finds_error = source.overrides.of(spec.resource_id).finds_error
        if reply["status"] == "error" or (finds_error is not None and finds_error(value["text"][:_MATCHED_CHARS])):
            raise refusals.said_so(spec.name, value["text"], self._redact)
        return Outcome(value=value)


def _is_cancelled() -> bool:
    """Whether somebody asked for it: a CancelledError of the tool's own making would leave the caller unanswered."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
