"""Errors as gRPC statuses (AIP-193): every one carries ErrorInfo, and RetryInfo where waiting helps."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from toolhub_service.domain.errors import ErrorKind, HubFailure, HubStatus

ERROR_DOMAIN = "toolhub"
"""The `domain` of every ErrorInfo."""

EQUAL_STATUS: dict[ErrorKind, grpc.StatusCode] = {
    ErrorKind.TOOL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.TOOL_QUARANTINED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.TOOL_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.INPUT_SCHEMA_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.INVALID_INPUT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.POLICY_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.APPROVAL_REQUIRED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.APPROVAL_REJECTED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.PLAN_REQUIRED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.PATH_OUTSIDE_SANDBOX: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorKind.FILE_TOO_LARGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorKind.HTTP_DISALLOWED_HOST: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.HTTP_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.HTTP_TOO_LARGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorKind.NETWORK_ERROR: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.IO_ERROR: grpc.StatusCode.INTERNAL,
    ErrorKind.EXECUTION_ERROR: grpc.StatusCode.UNKNOWN,
    ErrorKind.BUDGET_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.CIRCUIT_OPEN: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorKind.UPSTREAM_ERROR: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.OUTPUT_SCHEMA_INVALID: grpc.StatusCode.DATA_LOSS,
    ErrorKind.IDEMPOTENCY_CONFLICT: grpc.StatusCode.ABORTED,
    ErrorKind.OUTCOME_UNKNOWN: grpc.StatusCode.UNKNOWN,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}
"""The gRPC status an equal RPC error would have; docs/errors.md is held to it."""


@dataclass(slots=True)
class RpcFailure(Exception):
    """An RPC that ends with a status instead of an answer."""

    code: grpc.StatusCode
    reason: str
    """UPPER_SNAKE, at most 63 characters: what a program branches on."""
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    field_violations: tuple[tuple[str, str], ...] = ()
    """(field path, what is wrong), for malformed requests."""


def from_hub_failure(failure: HubFailure) -> RpcFailure:
    return RpcFailure(
        code_of(failure.status), failure.reason, failure.message, dict(failure.metadata), failure.retry_after_s
    )


def code_of(status: HubStatus) -> grpc.StatusCode:
    return grpc.StatusCode[status.value]


def details_trailer(failure: RpcFailure) -> tuple[str, bytes]:
    """The `grpc-status-details-bin` trailer: a google.rpc.Status with its details."""
    status = status_pb2.Status(code=failure.code.value[0], message=failure.message)
    info = error_details_pb2.ErrorInfo(reason=failure.reason, domain=ERROR_DOMAIN, metadata=failure.metadata)
    status.details.append(_packed(info))
    if failure.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(int(failure.retry_after_s * 1_000))
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if failure.field_violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=path, description=text)
            for path, text in failure.field_violations
        ]
        status.details.append(_packed(error_details_pb2.BadRequest(field_violations=violations)))
    return "grpc-status-details-bin", status.SerializeToString()


def _packed(
    detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo | error_details_pb2.BadRequest,
) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed
