"""Step 6 for templates of ComfyUI sources: every call is a job, driven by `RemoteExecutor` over `ComfyJob`."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.job import ComfyJob
from toolhub_service.adapters.comfyui.rising_progress import RisingProgress
from toolhub_service.adapters.comfyui.terms import ComfyTerms
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_telling import new_mark
from toolhub_service.adapters.remote_terms import RemoteTerms
from toolhub_service.domain.call import GrantedCall, PlannedCall
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec


class ComfyAdapter:
    """Runs the tools of all ComfyUI sources of a hub. Implements `Adapter`."""

    kind = ToolKind.COMFYUI

    def __init__(self, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._jobs: dict[str, ComfyJob] = {}
        self._executors: dict[str, RemoteExecutor] = {}
        self._terms: dict[str, ComfyTerms] = {}

    def put(self, terms: ComfyTerms, job: ComfyJob) -> None:
        """Add a source, or put another in its place. Jobs under way end where they began."""
        self._terms[terms.name] = terms
        self._jobs[terms.name] = job
        patience = RemoteTerms(absent_for_s=terms.lost_after_s)
        self._executors[terms.name] = RemoteExecutor(job, self._running, self._clock, self._randomness, patience)

    def remove(self, name: str) -> None:
        """Take a source away; does nothing when it is not there."""
        for known in (self._terms, self._jobs, self._executors):
            known.pop(name, None)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        executor, job = self._executors.get(call.spec.source), self._jobs.get(call.spec.source)
        if executor is None or job is None:
            raise failures.no_source(call)
        job_id = call.call.job_id
        rising = job.sinks[job_id] = RisingProgress(sink)
        try:
            return await executor.execute(call, rising)
        finally:
            if job.sinks.get(job_id) is rising:
                del job.sinks[job_id]
            job.forget(new_mark(job_id).key)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        terms = self._terms.get(call.spec.source)
        if terms is None:
            raise failures.no_source(call)
        servers = ", ".join(backend.name for backend in terms.backends)
        template = call.spec.resource_id.partition("@")[0]
        return (
            f"Runs the template `{template}` on a ComfyUI server ({servers}) and keeps what it makes as artifacts.",
        )

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def resumes(self, spec: ToolSpec) -> bool:
        return True
