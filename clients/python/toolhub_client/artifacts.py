"""What uploads and downloads of artifacts share: their values, their progress, and their end when nothing moves.

artifact = await hub.put_artifact(Path("report.csv"))
await hub.invoke("core/fs.writeText", {"path": "report.csv", "text": {"$artifact": artifact.artifact_id}})
data = await hub.get_artifact(artifact.artifact_id)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from toolhub.v1 import artifact_pb2
from toolhub_client.failures import stalled

Artifact = artifact_pb2.Artifact

OnProgress = Callable[[int, int], object]
"""Called with the bytes that were sent or received so far, and with those of the whole; 0: unknown."""


class DigestMismatch(Exception):
    """The bytes do not match the artifact's digest: discard them."""


class CutShort(ConnectionError):
    """The hub ends an artifact before its end, again and again: its store may be damaged."""


@asynccontextmanager
async def moving_within(stall_s: float | None) -> AsyncIterator[None]:
    """Raises Stalled when what is done inside, which is one step of a transfer, takes longer; None: any time."""
    scope = asyncio.timeout(stall_s)
    try:
        async with scope:
            yield
    except TimeoutError as late:
        if stall_s is None or not scope.expired():
            raise
        raise stalled(stall_s) from late
