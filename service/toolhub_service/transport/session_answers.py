"""Answers that a session gives itself: to a call that breaks the contract, and to one that its caller cancelled.

The walk of a cancelled call has recorded it by then; a malformed one never begins, as a malformed RPC does not.
"""

from __future__ import annotations

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.result import Evidence, EvidenceType, ToolResult
from toolhub_service.runtime.failures import cancelled

_NAME_MAX = 128


def malformed(request: pb.SessionCall, call_id: str, problem: str, now_unix_ms: int) -> ToolResult:
    return _refused(call_id, request.intent.tool[:_NAME_MAX], ToolError(ErrorKind.INVALID_INPUT, problem), now_unix_ms)


def cancelled_by_caller(call: Call, now_unix_ms: int) -> ToolResult:
    return _refused(call.call_id, call.tool, cancelled(), now_unix_ms)


def _refused(call_id: str, tool: str, error: ToolError, now_unix_ms: int) -> ToolResult:
    evidence = Evidence(EvidenceType.TOOL, ref=call_id, summary=error.kind.value, created_at_unix_ms=now_unix_ms)
    return ToolResult(ok=False, call_id=call_id, tool=tool, error=error, evidence=(evidence,))
