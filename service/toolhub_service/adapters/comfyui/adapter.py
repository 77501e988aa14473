"""Step 6 for templates of ComfyUI sources: every call is a job, driven by `RemoteExecutor` over `ComfyJob`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.job import ComfyJob
from toolhub_service.adapters.comfyui.rising_progress import RisingProgress
from toolhub_service.adapters.comfyui.terms import ComfyTerms
from toolhub_service.adapters.last_one_out import LastOneOut
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_telling import new_mark
from toolhub_service.adapters.remote_terms import RemoteTerms
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec


class _Source(NamedTuple):
    terms: ComfyTerms
    job: ComfyJob
    executor: RemoteExecutor
    connections: LastOneOut


class ComfyAdapter:
    """Runs the tools of all ComfyUI sources of a hub. Implements `Adapter`."""

    kind = ToolKind.COMFYUI

    def __init__(self, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._sources: dict[str, _Source] = {}

    def put(self, terms: ComfyTerms, job: ComfyJob, connections: LastOneOut) -> None:
        """Add a source, or put another in its place. Jobs under way end where they began."""
        patience = RemoteTerms(absent_for_s=terms.lost_after_s)
        executor = RemoteExecutor(job, self._running, self._clock, self._randomness, patience)
        self._sources[terms.name] = _Source(terms, job, executor, connections)

    def remove(self, name: str) -> None:
        """Take a source away; does nothing when it is not there."""
        self._sources.pop(name, None)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source = self._source(call)
        job, job_id = source.job, call.call.job_id
        rising = job.sinks[job_id] = RisingProgress(sink)
        async with source.connections.used():
            try:
                return await source.executor.execute(call, rising)
            finally:
                if job.sinks.get(job_id) is rising:
                    del job.sinks[job_id]
                job.forget(new_mark(job_id).key)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        servers = ", ".join(backend.name for backend in self._source(call).terms.backends)
        template = call.spec.resource_id.partition("@")[0]
        return (
            f"Runs the template `{template}` on a ComfyUI server ({servers}) and keeps what it makes as artifacts.",
        )

    def _source(self, call: GrantedCall) -> _Source:
        """Raises ToolFailure when it is gone."""
        source = self._sources.get(call.spec.source)
        if source is None or source.connections.is_closed:
            raise failures.no_source(call)
        return source

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def resumes(self, spec: ToolSpec) -> bool:
        return True
