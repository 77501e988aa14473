"""Answers that were lost: a connection broke, or the time ran out, after a request was sent.

What was asked for may have been done. So nobody is told to start a hub or to try again, but how to find out.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, Final

import click
import grpc
from google.protobuf.message import Message

from toolhub_service.guards.foreign_text import on_one_line

EXIT_OUTCOME_UNKNOWN: Final = 4
# The hub answered and refused. Every other status means that it could not be reached.
REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
# Of request messages that change nothing, also when they are sent twice.
_READS: Final = (
    "Get",
    "List",
    "Search",
    "Watch",
    "Export",
    "Tail",
    "Verify",
    "Read",
    "HealthCheck",
    "ToolServiceWatch",
)
_CALL_ID: Final = "toolhub-call-id"


@dataclass(slots=True)
class Sent:
    """The request that was sent last over a connection."""

    request: Message | None = None

    @property
    def changes(self) -> bool:
        """Return whether it may have had an effect."""
        return self.request is not None and not self.request.DESCRIPTOR.name.startswith(_READS)


class AnswerLost(click.ClickException):
    """The request was sent, and whether it had its effect is not known."""

    exit_code = EXIT_OUTCOME_UNKNOWN


def is_lost(code: grpc.StatusCode, reason: str, error: grpc.RpcError) -> bool:
    """Return whether an RPC failed after its request may have been sent, without a word of the hub."""
    if reason or code in REFUSALS:  # the answer is the hub's
        return False
    from toolhub_client.failures import may_have_arrived  # needed by few of the commands that fail

    return may_have_arrived(error)


def lost_text(address: str, code: grpc.StatusCode) -> str:
    """Return what happened to the connection, as one sentence."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} did not answer in time."
    return f"The connection to {address} broke before the answer came."


def lost_answer(address: str, sent: Sent, error: grpc.RpcError) -> AnswerLost:
    """Return what may have been done, and the commands that tell whether it was."""
    call: Any = error  # a stub raises an RpcError that is also a Call, which its types do not express
    metadata = call.initial_metadata() or ()
    call_id = next((on_one_line(str(value)) for key, value in metadata if key == _CALL_ID), "")
    what = f"Call {call_id}" if call_id else "What was asked for"
    ways = "\n".join(_ways_to_find_out(sent.request, call_id))
    return AnswerLost(f"{lost_text(address, call.code())} {what} may have had its effect. To find out:\n{ways}")


def _ways_to_find_out(request: Any, call_id: str) -> list[str]:
    name = request.DESCRIPTOR.name
    if name.startswith(("Invoke", "SubmitJob")):
        return _ways_of_call(request, call_id)
    if "Credential" in name or "Login" in name:
        return ["toolhub credentials list"]
    match name:
        case "DecideApprovalRequest":
            words = ["approvals", "show", request.approval_id]
        case "DecidePinRequest":
            words = ["pins", "list", "--state", "all", "--tool", request.tool]
        case "CancelJobRequest":
            words = ["jobs", "show", request.job_id]
        case "ArtifactHeader":
            words = ["artifacts", "list", *(["--sha256", request.sha256] if request.sha256 else [])]
        case "DeleteArtifactRequest":
            words = ["artifacts", "show", request.artifact_id]
        case "RefreshSourcesRequest":
            words = ["sources", "list"]
        case "RegisterToolRequest" | "RegisterToolsRequest" | "UnregisterToolRequest":
            words = ["tools", "list"]
        case _:
            words = ["audit", "tail"]
    return [shlex.join(["toolhub", *words])]


def _ways_of_call(request: Any, call_id: str) -> list[str]:
    context = request.context
    which = ["--call-id", call_id] if call_id else ["--task-id", context.task_id]
    ways = [shlex.join(["toolhub", "audit", "query", *which]) + "  (needs the role auditor)"]
    ways.append(shlex.join(["toolhub", "jobs", "list", "--request", context.request_id, "--tool", request.intent.tool]))
    if request.intent.idempotency_key:
        ways.append("Or run the same command again: with its idempotency key the effect happens once.")
    else:
        ways.append("Run the command again only if neither shows it: with --idempotency-key that would be safe.")
    return ways
