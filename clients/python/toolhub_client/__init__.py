"""A thin asyncio client of tool-hub.

async with connect("127.0.0.1:50051") as hub:
    answer = await hub.invoke("core/util.time.now", {"timezone": "UTC"})
    print(answer.unwrap())
"""

from __future__ import annotations

from toolhub_client.answer import Answer, CallFailed, Chunk, Progress
from toolhub_client.artifacts import Artifact, DigestMismatch
from toolhub_client.channel import connect
from toolhub_client.context import Context
from toolhub_client.errors import ErrorKind, Reason
from toolhub_client.hub import Hub
from toolhub_client.jobs import FINAL_STATES

__all__ = [
    "FINAL_STATES",
    "Answer",
    "Artifact",
    "CallFailed",
    "Chunk",
    "Context",
    "DigestMismatch",
    "ErrorKind",
    "Hub",
    "Progress",
    "Reason",
    "connect",
]
