"""Errors as gRPC statuses (AIP-193): every status has ErrorInfo, and RetryInfo where waiting helps."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.kinds import ERROR_KINDS, ErrorKind
from toolhub_service.domain.errors.spec import HubReason

ERROR_DOMAIN = "toolhub"
"""The `domain` of every ErrorInfo."""


@dataclass(slots=True)
class RpcFailure(Exception):
    """An RPC that ends with an error status."""

    reason: HubReason | ErrorKind
    """The code for programs; for an RPC that is not a call, the kind of the tool error that it met."""
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    """None: as the reason defines."""
    field_violations: tuple[tuple[str, str], ...] = ()
    """(field path, what is wrong), for malformed requests."""

    def __post_init__(self) -> None:
        if self.retry_after_s is None and isinstance(self.reason, HubReason):
            self.retry_after_s = self.reason.retry_after_s

    @property
    def code(self) -> grpc.StatusCode:
        code = self.reason.code if isinstance(self.reason, HubReason) else ERROR_KINDS[self.reason].code
        return grpc.StatusCode[code.name]


def from_hub_failure(failure: HubFailure) -> RpcFailure:
    return RpcFailure(failure.reason, failure.message, dict(failure.metadata), failure.retry_after_s)


def details_trailer(failure: RpcFailure) -> tuple[str, bytes]:
    """The `grpc-status-details-bin` trailer: a google.rpc.Status with its details."""
    status = status_pb2.Status(code=failure.code.value[0], message=failure.message)
    info = error_details_pb2.ErrorInfo(reason=failure.reason.name, domain=ERROR_DOMAIN, metadata=failure.metadata)
    status.details.append(_pack_detail(info))
    if failure.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(int(failure.retry_after_s * 1_000))
        status.details.append(_pack_detail(error_details_pb2.RetryInfo(retry_delay=delay)))
    if failure.field_violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=path, description=text)
            for path, text in failure.field_violations
        ]
        status.details.append(_pack_detail(error_details_pb2.BadRequest(field_violations=violations)))
    return "grpc-status-details-bin", status.SerializeToString()


def _pack_detail(
    detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo | error_details_pb2.BadRequest,
) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed
