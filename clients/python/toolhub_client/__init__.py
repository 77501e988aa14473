"""A client of tool-hub, for asyncio and, as `connect_sync`, without.

async with connect() as hub:  # TOOLHUB_ADDRESS, TOOLHUB_API_KEY, TOOLHUB_CA_FILE
    answer = await hub.invoke("core/util.time.now", {"timezone": "UTC"})
    print(answer.unwrap())
"""

from __future__ import annotations

from toolhub_client.answer import Answer, Chunk, DryRun, Progress
from toolhub_client.artifacts import Artifact, CutShort, DigestMismatch
from toolhub_client.channel import PlaintextCredentialWarning, Target
from toolhub_client.context import (
    ApprovalFields,
    ArtifactFields,
    CallOptions,
    ConnectOptions,
    Context,
    JobFields,
    ToolFields,
    WatchedJobFields,
)
from toolhub_client.errors import ErrorKind, Reason
from toolhub_client.faces import Face
from toolhub_client.failures import (
    ApprovalRequired,
    CallFailed,
    ConnectionLost,
    DeadlineExceeded,
    HubError,
    HubUnavailable,
    InvalidArguments,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PermissionDenied,
    PlanRequired,
    PolicyDenied,
    RateLimited,
    Stalled,
    ToolChanged,
    ToolNotFound,
    Unauthenticated,
)
from toolhub_client.hub import Hub, connect
from toolhub_client.jobs import FINAL_STATES
from toolhub_client.session import Session
from toolhub_client.stubs import export_stubs
from toolhub_client.sync import SyncFace, SyncHub, connect_sync

__all__ = [
    "FINAL_STATES",
    "Answer",
    "ApprovalFields",
    "ApprovalRequired",
    "Artifact",
    "ArtifactFields",
    "CallFailed",
    "CallOptions",
    "Chunk",
    "ConnectOptions",
    "ConnectionLost",
    "Context",
    "CutShort",
    "DeadlineExceeded",
    "DigestMismatch",
    "DryRun",
    "ErrorKind",
    "Face",
    "Hub",
    "HubError",
    "HubUnavailable",
    "InvalidArguments",
    "InvalidRequest",
    "JobFields",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "PlaintextCredentialWarning",
    "PlanRequired",
    "PolicyDenied",
    "Progress",
    "RateLimited",
    "Reason",
    "Session",
    "Stalled",
    "SyncFace",
    "SyncHub",
    "Target",
    "ToolChanged",
    "ToolFields",
    "ToolNotFound",
    "Unauthenticated",
    "WatchedJobFields",
    "connect",
    "connect_sync",
    "export_stubs",
]
