"""What one job reports, from whichever side it is learnt: never less than was reported before."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.progress import Chunk, Progress


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
