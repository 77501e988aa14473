"""Stopping one prompt and no other.

With jobs: one request that is atomic and may be repeated. Without: out of the queue first, then, only if it is the one
that runs, an interrupt that names it (one without a name, or to a server too old to read it, stops whoever is running).
Nodes are not interrupted, only what comes after them, so it may take long; whoever follows asks again meanwhile.
"""

from __future__ import annotations

from enum import Enum

from toolhub_service.adapters.comfyui.backends import Backend
from toolhub_service.adapters.comfyui.client import NoReply
from toolhub_service.adapters.comfyui.states import Stage


class Stop(Enum):
    REMOVED = "removed"
    """The server has taken it out: if it is not known there any more, that is why."""
    ASKED = "asked"
    """It runs, and is to stop."""
    OVER = "over"
    """There is nothing to stop."""


async def stop(backend: Backend, prompt_id: str) -> Stop:
    """Raises NoReply when it does not take it."""
    kind = await backend.kind()
    stage = (await backend.look(prompt_id)).stage
    if stage.is_over or stage is Stage.UNKNOWN:
        return Stop.OVER
    if kind.has_jobs:
        return await _by_jobs(backend, prompt_id)
    return await _by_queue(backend, prompt_id, was_waiting=stage is Stage.PENDING)


async def _by_jobs(backend: Backend, prompt_id: str) -> Stop:
    reply = await backend.client.post(f"/api/jobs/{prompt_id}/cancel", {})
    if reply.status == 200 and reply.fields.get("cancelled") is True:
        return Stop.REMOVED
    stage = (await backend.look(prompt_id)).stage
    if stage.is_over or stage is Stage.UNKNOWN:
        return Stop.OVER
    raise NoReply(f"it does not stop it ({reply.status})")


async def _by_queue(backend: Backend, prompt_id: str, *, was_waiting: bool) -> Stop:
    deleted = await backend.client.post("/queue", {"delete": [prompt_id]})
    stage = (await backend.look(prompt_id)).stage
    if stage is Stage.RUNNING:
        reply = await backend.client.post("/interrupt", {"prompt_id": prompt_id})
        if reply.status != 200:
            raise NoReply(f"it does not stop it ({reply.status})")
        return Stop.ASKED
    if stage is Stage.UNKNOWN and was_waiting and deleted.status == 200:
        return Stop.REMOVED
    if stage is Stage.PENDING:
        raise NoReply(f"it does not take it out of its queue ({deleted.status})")
    return Stop.OVER
