"""Prompts of ComfyUI servers as remote jobs.

The id of a prompt is the mark's key: created and stored before anything is sent. It is not an idempotency key, because
a server runs the same id twice; so a start without a clear answer is looked up, and sent again only when it certainly
did not arrive. Polls determine the state; the WebSocket only shows when to poll, and how far the nodes are. A prompt
that a server accepts only in part (200 with `node_errors`) is stopped and followed to its end, and ends as refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.backends import Backend, Backends, StopResult
from toolhub_service.adapters.comfyui.client import NoReply
from toolhub_service.adapters.comfyui.event_feed import NodeProgress
from toolhub_service.adapters.comfyui.files.outputs import FileRecord, OutputFetch
from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.comfyui.states import PromptState, PromptStatus
from toolhub_service.adapters.comfyui.submitting import NODE_ERRORS, WITNESS, KeepMark, Submitter
from toolhub_service.adapters.comfyui.workflow.template import RunnableTemplate, Template, TemplateCache
from toolhub_service.adapters.remote_polling import Answer, Unreachable
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import RemoteUnclear
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.ports import Clock, EventSink
from toolhub_service.domain.result import Chunk, Evidence, EvidenceType, Outcome, Progress
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import repair_evidence

# A server checks for an interrupt only between nodes (6 to 12 s later, measured), and may lose one that arrives just
# then.
STOP_AGAIN_S: Final = 5.0
"""Seconds between two requests to stop the same prompt."""
_CERTAIN_POLLS: Final = 2
# Consecutive requests without an answer before it is reported.
_SILENT_POLLS: Final = 3
_STOP_ASKED: Final = "stop_asked_at_unix_ms"
_FILES_MAX: Final = 64
_NODES_MAX: Final = 200


class StopRequests:
    """The prompts of one source that should stop, by id: shared by cancelling and polling."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        """Cancelled by a caller."""
        self.overran: set[str] = set()
        """Ran longer than their templates allow."""
        self.removed: set[str] = set()
        """Removed by servers at our request."""
        self.in_flight: set[str] = set()
        """A server is being asked now: if it does not know the prompt, our request may be the reason."""

    def forget(self, prompt_id: str) -> None:
        for known in (self.wanted, self.overran, self.removed):
            known.discard(prompt_id)


class PromptPoll:
    """Polls the state of one prompt until it has ended or is certainly lost."""

    def __init__(
        self,
        backend: Backend,
        mark: RemoteMark,
        nodes: NodeProgress,
        stops: StopRequests,
        clock: Clock,
        *,
        lost_after_s: float,
        max_runtime_s: float | None,
    ) -> None:
        """`max_runtime_s`: None: no limit; time in the queue does not count."""
        self._backend = backend
        self._mark = mark
        self._prompt_id = mark.remote_id
        self._nodes = nodes
        self._clock = clock
        self._lost_after_s = lost_after_s
        self._stops = stops
        self._max_runtime_s = max_runtime_s
        self._stopped_at_s: float | None = None
        self._runs_since_s: float | None = None
        self._unknown_since_s: float | None = None
        self._unknown_polls = 0
        self._silent_polls = 0
        # A server does not report when it started: while it still knows a prompt from before this one was lost, it was
        # not restarted.
        self._witness = mark.details.get(WITNESS, "")

    async def progress(self) -> Answer[Progress]:
        """Return the progress; a `Question` of a Poller. Raises Unreachable, RemoteUnclear."""
        try:
            seen = await self._read_status()
            if seen.state is PromptState.RUNNING:
                now_s = self._clock.monotonic_s()
                self._runs_since_s = now_s if self._runs_since_s is None else self._runs_since_s
                if self._max_runtime_s is not None and now_s - self._runs_since_s >= self._max_runtime_s:
                    self._stops.overran.add(self._prompt_id)
            if seen.state in (PromptState.PENDING, PromptState.RUNNING) and self._is_to_stop:
                await self._stop_again()
        except NoReply as silent:
            self._unknown_since_s, self._unknown_polls = None, 0
            self._silent_polls += 1
            if self._silent_polls < _SILENT_POLLS:
                raise Unreachable(silent.retry_after_s) from silent
            message = f"{self._backend.name} does not answer ({silent.reason}); it is asked again"
            return Answer(self._nodes.progress(message), retry_after_s=silent.retry_after_s)
        self._silent_polls = 0
        if seen.state is not PromptState.UNKNOWN:
            self._unknown_since_s, self._unknown_polls = None, 0
            return Answer(self._progress_of(seen), is_over=seen.state.is_over)
        if self._prompt_id in self._stops.in_flight:
            raise Unreachable
        if self._prompt_id in self._stops.removed and self._unknown_polls >= _CERTAIN_POLLS - 1:
            return Answer(self._nodes.progress("the server removed it"), is_over=True)
        await self._check_lost()
        raise Unreachable

    async def end(self) -> Answer[PromptStatus]:
        """Return the final state; a `Question` of a Poller. Raises Unreachable, RemoteUnclear."""
        try:
            seen = await self._read_status()
        except NoReply as silent:
            raise Unreachable(silent.retry_after_s) from silent
        # A prompt that was removed from the queue leaves no trace, so an unknown one is then as requested.
        if seen.state is PromptState.UNKNOWN and self._prompt_id not in self._stops.removed:
            await self._check_lost()
        elif seen.state.is_over or seen.state is PromptState.UNKNOWN:
            return Answer(seen)
        raise Unreachable

    async def _read_status(self) -> PromptStatus:
        """Return the state, and note another prompt that the server knows while it knows this one. Raises NoReply."""
        seen = await self._backend.read_status(self._prompt_id)
        if seen.state is not PromptState.UNKNOWN and self._backend.witness != self._prompt_id:
            self._witness = self._backend.witness or self._witness
        return seen

    @property
    def _is_to_stop(self) -> bool:
        # 200 with `node_errors` means that the prompt was accepted only in part: the server silently drops branches
        # that it cannot run, as long as one is left. It counts as refused, and the rest is stopped.
        is_asked = self._prompt_id in self._stops.wanted or self._prompt_id in self._stops.overran
        return is_asked or NODE_ERRORS in self._mark.details

    async def _check_lost(self) -> None:
        """Raises RemoteUnclear when the server has not known the prompt for too long without interruption."""
        # History, queue and jobs of a server are empty after a restart, and a prompt removed from the queue leaves no
        # trace: only time distinguishes it from one that is moving between two lists.
        now_s = self._clock.monotonic_s()
        self._unknown_since_s = now_s if self._unknown_since_s is None else self._unknown_since_s
        self._unknown_polls += 1
        if self._unknown_polls >= _CERTAIN_POLLS and now_s - self._unknown_since_s >= self._lost_after_s:
            raise RemoteUnclear(await _loss_reason(self._backend, self._witness))

    async def _stop_again(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._stopped_at_s is not None and now_s - self._stopped_at_s < STOP_AGAIN_S:
            return
        self._stopped_at_s = now_s
        if await self._backend.stop(self._prompt_id) is StopResult.REMOVED:
            self._stops.removed.add(self._prompt_id)

    def _progress_of(self, seen: PromptStatus) -> Progress:
        name = self._backend.name
        if seen.state is PromptState.SUCCEEDED:
            return self._nodes.final_progress(f"done on {name}; fetching its output")
        if seen.state.is_over:
            return self._nodes.progress(f"it has ended on {name}")
        if self._prompt_id in self._stops.overran:
            return self._nodes.progress(f"ran for longer than it may; {name} is stopping it")
        if seen.state is PromptState.PENDING:
            at = f"{_ordinal(seen.place[0])} of {seen.place[1]}" if seen.place else "waits"
            return self._nodes.progress(f"{at} in the queue of {name}")
        return self._nodes.progress() if self._nodes.has_events else self._nodes.progress(f"runs on {name}")


class RisingProgress:
    """An `EventSink` that never reports less than before, because polls and events may arrive out of order."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._last: Progress | None = None

    def progress(self, progress: Progress) -> None:
        before = self._last
        if before is not None and (progress.step < before.step or not progress.unit):
            progress = structs.replace(progress, step=before.step, total=before.total, unit=before.unit)
        if progress == before:
            return
        self._last = progress
        self._sink.progress(progress)

    def chunk(self, chunk: Chunk) -> None:
        self._sink.chunk(chunk)


class ComfyJob:
    """Implements `RemoteJob` for one source."""

    def __init__(
        self,
        backends: Backends,
        templates: TemplateCache,
        artifacts: ArtifactService,
        clock: Clock,
        redact: Redact,
        keep_mark: KeepMark,
        entry: ComfyUiSource,
    ) -> None:
        self._backends = backends
        self._templates = templates
        self._artifacts = artifacts
        self._clock = clock
        self._redact = redact
        self._entry = entry
        self._submitter = Submitter(backends, artifacts, keep_mark, redact)
        self._stops = StopRequests()
        self.sinks: dict[str, RisingProgress] = {}
        """By job: receives the progress of its nodes."""

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        runnable = self._runnable(call)
        if runnable is None:
            raise failures.no_template(call)
        self._watch(call, mark.key, runnable.backends)
        return await self._submitter.start(call, mark, runnable)

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        runnable = self._runnable(call)
        return await self._submitter.find(call, mark, runnable.template if runnable else None)

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        backend = self._at(call, mark)
        nodes = self._watch(call, mark.remote_id, {backend.name})
        poll = self._poll(backend, mark, nodes, self._runnable(call))
        try:
            async for progress in backend.poller.poll(poll.progress, key=mark.remote_id):
                yield progress
        finally:
            backend.events.forget(mark.remote_id)

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        backend = self._at(call, mark)
        self._stops.wanted.add(mark.remote_id)
        try:
            self._stops.in_flight.add(mark.remote_id)
            if await backend.stop(mark.remote_id) is StopResult.REMOVED:
                self._stops.removed.add(mark.remote_id)
        except NoReply as unreached:
            raise RemoteUnclear(failures.unclear(backend.name, unreached)) from unreached
        finally:
            self._stops.in_flight.discard(mark.remote_id)
        backend.poller.poll_now(mark.remote_id)
        return True

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        backend, runnable = self._at(call, mark), self._runnable(call)
        if runnable is None:
            raise failures.no_template(call)
        template = runnable.template
        nodes = NodeProgress(template.graph, lambda _: None)
        seen = await backend.poller.answer(self._poll(backend, mark, nodes, runnable).end)
        if NODE_ERRORS in mark.details:
            raise failures.node_errors(call, template, json.loads(mark.details[NODE_ERRORS]), self._redact)
        if seen.state is PromptState.FAILED:
            raise failures.node_failure(call, seen, self._redact)
        if seen.state is not PromptState.SUCCEEDED and mark.remote_id in self._stops.overran:
            raise failures.overran(call, template.limits.max_runtime_s or 0.0)
        if seen.state is not PromptState.SUCCEEDED:
            raise failures.cancellation(call, by_us=mark.remote_id in self._stops.wanted or _STOP_ASKED in mark.details)
        strip = self._entry.strip_metadata
        fetch = OutputFetch(
            backend, self._artifacts, self._redact, call, template, strip_metadata=strip, cached=seen.cached_nodes
        )
        await fetch.run(seen.outputs)
        return Outcome(
            value=fetch.value,
            evidence=_evidence(call, mark, template, seen, fetch.files),
            artifacts=tuple(record.ref for record in fetch.files),
        )

    def forget(self, prompt_id: str) -> None:
        """Drop a prompt whose run has ended or was taken over by another process."""
        self._submitter.forget(prompt_id)
        self._stops.forget(prompt_id)
        for backend in self._backends:
            backend.events.forget(prompt_id)

    def _poll(
        self, backend: Backend, mark: RemoteMark, nodes: NodeProgress, runnable: RunnableTemplate | None
    ) -> PromptPoll:
        lost_after_s = self._entry.lost_after_s
        max_runtime_s = runnable.template.limits.max_runtime_s if runnable else None
        return PromptPoll(
            backend, mark, nodes, self._stops, self._clock, lost_after_s=lost_after_s, max_runtime_s=max_runtime_s
        )

    def _watch(self, call: GrantedCall, prompt_id: str, backends: frozenset[str] | set[str]) -> NodeProgress:
        """Return the progress of the prompt's nodes, the known one or a new one, which receives the prompt's events."""
        runnable = self._runnable(call)
        known = [backend for backend in self._backends if backend.name in backends]
        nodes = next((found for backend in known if (found := backend.events.progress_of(prompt_id))), None)
        nodes = nodes or NodeProgress(
            runnable.template.graph if runnable else {}, partial(self._report, call.call.job_id)
        )
        for backend in known:
            backend.events.follow(prompt_id, nodes)
        return nodes

    def _report(self, job_id: str, progress: Progress) -> None:
        if job_id in self.sinks:
            self.sinks[job_id].progress(progress)

    def _runnable(self, call: GrantedCall) -> RunnableTemplate | None:
        return self._templates.get(call.spec.resource_id)

    def _at(self, call: GrantedCall, mark: RemoteMark) -> Backend:
        """Return the mark's server. Raises RemoteUnclear when it is no longer configured."""
        backend = self._backends.get(mark.endpoint)
        if backend is None:
            raise RemoteUnclear(f"The server {mark.endpoint} is no longer configured in this hub.")
        return backend.for_caller(call)


def _evidence(
    call: GrantedCall, mark: RemoteMark, template: Template, seen: PromptStatus, files: Sequence[FileRecord]
) -> tuple[Evidence, ...]:
    """Return one item for the run, and one for each file (64 at most)."""
    cached = [node for node in seen.cached_nodes if node in template.graph]
    executed = [node for node in template.graph if node not in cached]
    ended = seen.time_of("execution_success", "execution_error", "execution_interrupted")
    times = {
        "created_at_unix_ms": seen.created_ms,
        "started_at_unix_ms": seen.time_of("execution_start"),
        "ended_at_unix_ms": ended,
    }
    attributes = {
        "source": call.spec.source,
        "backend": mark.endpoint,
        "prompt_id": mark.remote_id,
        "args_digest": call.planned.args_digest,
        "cached_nodes": ",".join(cached[:_NODES_MAX]),
        "executed_nodes": ",".join(executed[:_NODES_MAX]),
        "fully_cached": "true" if not executed else "false",
        **{name: str(at) for name, at in times.items() if at},
    }
    if mark.details.get("template_sha256", template.sha256) != template.sha256:
        attributes["collected_with_template_sha256"] = template.sha256
    what = "took every result from its cache" if not executed else f"ran {len(executed)} of {len(template.graph)} nodes"
    summary = f"{call.spec.name}: {mark.endpoint} {what}, {len(files)} files"
    run = Evidence(EvidenceType.TOOL, mark.remote_id, summary, attributes=attributes)
    repairs = repair_evidence(mark.remote_id, seen.repairs)
    return (run, *repairs, *(record.evidence() for record in files[:_FILES_MAX]))


async def _loss_reason(backend: Backend, witness: str) -> str:
    """Return why a prompt was lost. `witness`: a prompt that the server knew before; empty: none."""
    lost = f"The server {backend.name} no longer knows it: it is neither running, nor queued, nor in the history."
    unclear = f"{lost} The server has restarted since, or somebody removed it"
    if not witness:
        return unclear
    try:
        is_known = (await backend.read_status(witness)).state is not PromptState.UNKNOWN
    except NoReply:
        return unclear
    if is_known:
        return (
            f"{lost} The server still knows earlier runs, so it did not restart: somebody removed this one from "
            "its queue or history"
        )
    return f"{lost} The server knows no earlier run either: it has restarted since, or its whole history was cleared"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
