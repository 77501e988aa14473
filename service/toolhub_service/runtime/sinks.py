"""Event sinks of the runtime itself."""

from __future__ import annotations

from toolhub_service.domain.progress import Chunk, Progress


class SilentSink:
    """Nobody listens: a unary call."""

    def progress(self, progress: Progress) -> None:
        """Dropped."""

    def chunk(self, chunk: Chunk) -> None:
        """Dropped: the whole output stands in the result."""


SILENT = SilentSink()
