"""Having a stored job delivered."""

from __future__ import annotations

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import JobEngine, JobObserver


async def deliver(engine: JobEngine, job_id: str, observer: JobObserver) -> None:
    """Soon; or later by the sweep when the engine cannot be reached, for the job stands in the store."""
    try:
        await engine.enqueue(job_id)
    except ToolFailure as away:
        observer.troubled(job_id, away)
