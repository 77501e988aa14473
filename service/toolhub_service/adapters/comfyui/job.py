"""Prompts of ComfyUI servers as remote jobs.

The id of a prompt is the mark's key: minted and kept before anything is sent. It is no idempotency key, for a server
runs the same id twice; so a start without a clear answer is looked up, and sent again only where it certainly is not.
The answers to questions are the truth; the WebSocket says when to ask, and how far the nodes are.

A prompt that a server takes only in part (200 with `node_errors`) is stopped and followed until it has ended, and ends
as refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from toolhub_service.adapters.comfyui import failures, submitting
from toolhub_service.adapters.comfyui.backends import Backend, Backends
from toolhub_service.adapters.comfyui.client import NoReply
from toolhub_service.adapters.comfyui.event_feed import NodeProgress
from toolhub_service.adapters.comfyui.following import Following, Stop, Stops, stop
from toolhub_service.adapters.comfyui.outputs import OutputFetcher
from toolhub_service.adapters.comfyui.states import Stage
from toolhub_service.adapters.comfyui.submitting import NODE_ERRORS, KeepMark, Submitter
from toolhub_service.adapters.comfyui.template import ShelvedTemplate, TemplateShelf
from toolhub_service.adapters.comfyui.uploads import Uploader
from toolhub_service.domain.artifact import ArtifactDesk
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import RemoteUnclear
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.ports import Clock, EventSink
from toolhub_service.domain.result import Chunk, Outcome, Progress
from toolhub_service.guards.secrets import Redact

# What one job reports, from whichever side it is learnt: never less than was reported before.


class RisingProgress:
    """Implements `EventSink` over another one."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._told: Progress | None = None

    def progress(self, progress: Progress) -> None:
        before = self._told
        if before is not None and (progress.step < before.step or not progress.unit):
            progress = replace(progress, step=before.step, total=before.total, unit=before.unit)
        if progress == before:
            return
        self._told = progress
        self._sink.progress(progress)

    def chunk(self, chunk: Chunk) -> None:
        self._sink.chunk(chunk)


_STOP_ASKED: Final = "stop_asked_at_unix_ms"


class ComfyJob:
    """Implements `RemoteJob` for one source."""

    def __init__(
        self,
        backends: Backends,
        shelf: TemplateShelf,
        desk: ArtifactDesk,
        clock: Clock,
        redact: Redact,
        keep_mark: KeepMark,
        *,
        strip_metadata: bool = True,
        lost_after_s: float = 15.0,
    ) -> None:
        self._backends = backends
        self._shelf = shelf
        self._desk = desk
        self._clock = clock
        self._redact = redact
        self._strip = strip_metadata
        self._lost_after_s = lost_after_s
        self._submitter = Submitter(backends, Uploader(desk), keep_mark, redact)
        self._stops = Stops()
        self.sinks: dict[str, RisingProgress] = {}
        """By job: where progress of its nodes is told."""

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        shelved = self._shelved(call)
        if shelved is None:
            raise failures.no_template(call)
        self._watch(call, mark.key, shelved.backends)
        return await self._submitter.start(call, mark, shelved)

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        shelved = self._shelved(call)
        return await self._submitter.find(call, mark, shelved.template if shelved else None)

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        backend = self._at(mark)
        nodes = self._watch(call, mark.remote_id, {backend.name})
        following = self._following(backend, mark, nodes, self._shelved(call))
        try:
            async for progress in backend.poller.poll(following.ask, key=mark.remote_id):
                yield progress
        finally:
            backend.events.forget(mark.remote_id)

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        backend = self._at(mark)
        self._stops.wanted.add(mark.remote_id)
        try:
            with self._stops.asking(mark.remote_id):
                if await stop(backend, mark.remote_id) is Stop.REMOVED:
                    self._stops.removed.add(mark.remote_id)
        except NoReply as unreached:
            raise RemoteUnclear(failures.unclear(backend.name, unreached)) from unreached
        backend.poller.hurry(mark.remote_id)
        return True

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        backend, shelved = self._at(mark), self._shelved(call)
        if shelved is None:
            raise failures.no_template(call)
        template = shelved.template
        following = self._following(backend, mark, NodeProgress(template.graph, _nobody), shelved)
        seen = await backend.poller.answer(following.end)
        if NODE_ERRORS in mark.details:
            raise failures.node_errors(call, template, json.loads(mark.details[NODE_ERRORS]), self._redact)
        if seen.stage is Stage.FAILED:
            raise failures.failed(call, seen, self._redact)
        if seen.stage is not Stage.SUCCEEDED and mark.remote_id in self._stops.overran:
            raise failures.overran(call, template.limits.max_runtime_s or 0.0)
        if seen.stage is not Stage.SUCCEEDED:
            raise failures.cancelled(call, by_us=mark.remote_id in self._stops.wanted or _STOP_ASKED in mark.details)
        fetcher = OutputFetcher(backend.client, backend.fetches, self._desk, self._redact, strip_metadata=self._strip)
        left = await fetcher.fetch(call, template, seen.outputs)
        return Outcome(
            value=left.value,
            evidence=submitting.run_evidence(call, mark, template, seen, left.files),
            artifacts=tuple(record.ref for record in left.files),
        )

    def forget(self, prompt_id: str) -> None:
        """Its run is over, or another process's."""
        self._submitter.forget(prompt_id)
        self._stops.forget(prompt_id)
        for backend in self._backends:
            backend.events.forget(prompt_id)

    def _following(
        self, backend: Backend, mark: RemoteMark, nodes: NodeProgress, shelved: ShelvedTemplate | None
    ) -> Following:
        return Following(
            backend,
            mark,
            nodes,
            self._clock,
            lost_after_s=self._lost_after_s,
            stops=self._stops,
            is_refused=NODE_ERRORS in mark.details,
            max_runtime_s=shelved.template.limits.max_runtime_s if shelved else None,
        )

    def _watch(self, call: GrantedCall, prompt_id: str, backends: frozenset[str] | set[str]) -> NodeProgress:
        """What tells of its nodes, the one that it has or a new one; what is heard of the prompt goes there."""
        shelved = self._shelved(call)
        known = [backend for backend in self._backends if backend.name in backends]
        nodes = next((found for backend in known if (found := backend.events.progress_of(prompt_id))), None)
        nodes = nodes or NodeProgress(shelved.template.graph if shelved else {}, self._teller(call))
        for backend in known:
            backend.events.follow(prompt_id, nodes)
        return nodes

    def _teller(self, call: GrantedCall) -> Callable[[Progress], None]:
        def tell(progress: Progress) -> None:
            rising = self.sinks.get(call.call.job_id)
            if rising is not None:
                rising.progress(progress)

        return tell

    def _shelved(self, call: GrantedCall) -> ShelvedTemplate | None:
        return self._shelf.get(call.spec.resource_id)

    def _at(self, mark: RemoteMark) -> Backend:
        """Raises RemoteUnclear when its server is not configured any more."""
        backend = self._backends.get(mark.endpoint)
        if backend is None:
            raise RemoteUnclear(f"The server {mark.endpoint} is not configured in this hub any more.")
        return backend


def _nobody(progress: Progress) -> None:
    """Events that come after the end."""
