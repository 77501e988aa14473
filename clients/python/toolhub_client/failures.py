"""What a caller may have to handle: an RPC that failed, and a call that was refused, or ran and failed.

HubError (a grpc.aio.AioRpcError)           CallFailed
  HubUnavailable                              ToolNotFound        did_you_mean
    ConnectionLost    call_id
  Overloaded                                  InvalidArguments    violations
  Unauthenticated                             PolicyDenied        rule_id, remedy
  PermissionDenied                            ApprovalRequired    approval_id
  NotFound                                    PlanRequired
  InvalidRequest                              RateLimited         retry_after_s
  DeadlineExceeded                            OutcomeUnknown
    Stalled
                                              ToolChanged         tool_digest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2, status_pb2

from toolhub.v1 import approval_pb2, error_pb2
from toolhub_client.errors import ADVICE, ErrorKind

_DETAILS = "grpc-status-details-bin"
_PREFIX = "ERROR_KIND_"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the hub adds to the status of a failed RPC (google.rpc.Status, AIP-193)."""

    reason: str = ""
    """Such as `Reason.OVERLOADED`; empty when it was not the hub that answered."""
    info: Mapping[str, str] = field(default_factory=dict)
    """Facts of the reason (google.rpc.ErrorInfo.metadata)."""
    retry_after_s: float = 0.0
    """How long the hub asks to wait; 0 when it does not say."""


def facts_of(error: grpc.RpcError) -> Facts:
    """Read them from the trailing metadata; of stubs with and without asyncio."""
    reason, info, retry_after_s = "", dict[str, str](), 0.0
    for detail in _details(error):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            found = error_details_pb2.ErrorInfo.FromString(detail.value)
            reason, info = found.reason, dict(found.metadata)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry_after_s = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay.ToMicroseconds() / 1e6
    return Facts(reason, info, retry_after_s)


class HubError(grpc.aio.AioRpcError):
    """An RPC failed: nothing is known of a call's result. `str()` is one line for a person."""

    def __init__(self, error: grpc.aio.AioRpcError, address: str = "") -> None:
        super().__init__(
            error.code(),
            error.initial_metadata(),
            error.trailing_metadata(),
            details=error.details(),
            debug_error_string=error.debug_error_string(),
        )
        self.address = address
        """The hub's; empty when unknown."""
        facts = facts_of(error)
        self.reason = facts.reason
        """Such as `Reason.OVERLOADED`; empty when it was not the hub that answered."""
        self.info = dict(facts.info)
        """Facts of the reason (google.rpc.ErrorInfo.metadata)."""
        self.retry_after_s = facts.retry_after_s
        """How long the hub asks to wait; 0 when it does not say."""

    def __str__(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.details()} ({self.reason or self.code().name})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class HubUnavailable(HubError):
    """No hub answers, and nothing was sent; `ConnectionLost` when the connection broke afterwards."""

    problem: str | None = None
    """gRPC's words for why there was no connection to send it over; None where an RPC failed."""


class ConnectionLost(HubUnavailable):
    """The connection broke after the request was sent: a call may have had its effect. Find out before you repeat it,
    by `call_id` in the audit log, or send calls with an idempotency key."""

    def __init__(self, error: grpc.aio.AioRpcError, address: str = "") -> None:
        super().__init__(error, address)
        sent = error.initial_metadata()
        self.call_id = str(sent.get("toolhub-call-id", "") if sent is not None else "")
        """The call's id in the audit log; empty when the connection broke before the hub sent it."""

    def __str__(self) -> str:
        which = f" Its id is {self.call_id}." if self.call_id else ""
        what = "the connection broke after the request was sent, which may have had its effect"
        return f"{super().__str__()}: {what}.{which}"


class Overloaded(HubError):
    """The hub carries as much as it takes, or was sent more than it takes, as `reason` says. It did nothing; where
    `retry_after_s` is set, come again then."""


class Unauthenticated(HubError):
    """The hub wants a credential, or knows the one that was sent no longer."""


class PermissionDenied(HubError):
    """The caller is known and lacks the role or the grant."""


class NotFound(HubError):
    """There is no such tool, job, artifact or approval, or it is not the caller's to see."""


class InvalidRequest(HubError):
    """The request breaks the contract's rules; the message names the fields."""


class DeadlineExceeded(HubError):
    """The RPC took longer than it was given. A call that was under way may have had its effect."""


class Stalled(DeadlineExceeded):
    """A transfer was given up: for `stall_s` seconds the hub took or sent nothing."""


_BY_CODE: dict[grpc.StatusCode, type[HubError]] = {
    grpc.StatusCode.UNAVAILABLE: HubUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def hub_error(error: grpc.aio.AioRpcError, address: str = "") -> HubError:
    """The failed RPC as the exception of its status."""
    if isinstance(error, HubError):
        return error
    if error.code() is grpc.StatusCode.UNAVAILABLE and not _details(error) and _was_sent(error.details() or ""):
        return ConnectionLost(error, address)
    return _BY_CODE.get(error.code(), HubError)(error, address)


# gRPC's words for a connection that was never made; it has no other sign.
_NEVER_SENT = (
    *("failed to connect", "Failed to connect", "DNS resolution failed", "address lookup failed", "andshake failed"),
    *("Connection refused", "No such file or directory", "empty address list", "http1.x"),
)


def _was_sent(details: str) -> bool:
    return not any(words in details for words in _NEVER_SENT)


# How gRPC reports that a connection broke under an RPC; a hub that fails adds a reason.
_BROKEN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)


def may_have_arrived(error: grpc.RpcError) -> bool:
    """Whether an RPC failed after its request may have been sent, without a word of the hub."""
    call: Any = error
    return call.code() in _BROKEN and not facts_of(error).reason and _was_sent(call.details() or "")


def unavailable(address: str, why: str, problem: str | None = None) -> HubUnavailable:
    """For an RPC that was never sent; `problem` are gRPC's words."""
    error = HubUnavailable(_made_here(grpc.StatusCode.UNAVAILABLE, why), address)
    error.problem = problem
    return error


def deadline_exceeded(address: str, timeout_s: float) -> DeadlineExceeded:
    """For work that was ended here."""
    why = f"It took longer than its timeout of {timeout_s:g} s."
    return DeadlineExceeded(_made_here(grpc.StatusCode.DEADLINE_EXCEEDED, why), address)


def stalled(stall_s: float) -> Stalled:
    """For a transfer that was ended here."""
    return Stalled(_made_here(grpc.StatusCode.DEADLINE_EXCEEDED, f"Nothing moved for {stall_s:g} s."))


def _made_here(code: grpc.StatusCode, why: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=why)


def _details(error: grpc.RpcError) -> Sequence[Any]:
    call: Any = error  # a stub raises an RpcError that is also a Call, which its types do not express
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            return list(status_pb2.Status.FromString(value).details)
    return ()


class CallFailed(Exception):
    """A call was refused, or ran and failed. `str()` is the hub's message for the model."""

    def __init__(self, error: error_pb2.ToolError, call_id: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.call_id = call_id

    @property
    def kind(self) -> str:
        """Such as `ErrorKind.POLICY_DENIED`; `UNKNOWN_<number>` for a kind of a newer hub."""
        return kind_of(self.error)

    @property
    def advice(self) -> str:
        """What a model should do about an error of this kind; empty when the kind is unknown."""
        return ADVICE.get(self.kind, "")

    @property
    def retryable(self) -> bool:
        return self.error.retryable

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait; None when waiting does not help or is unknown."""
        return self.error.retry_after.ToMicroseconds() / 1e6 if self.error.HasField("retry_after") else None

    @property
    def violations(self) -> Sequence[error_pb2.Violation]:
        """Every broken rule of the input schema: `path`, `message`, `hint`, for the model to repair the call from."""
        return self.error.violations

    @property
    def details(self) -> dict[str, Any]:
        """Facts for repair, such as `approval_id`, `rule_id`, `allowed_hosts`."""
        return MessageToDict(self.error.details)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {str(self)!r}, call_id={self.call_id!r})"


class ToolNotFound(CallFailed):
    """No tool has that name."""

    @property
    def did_you_mean(self) -> Sequence[str]:
        """Names that are close to it."""
        return list(self.details.get("did_you_mean", ()))


class InvalidArguments(CallFailed):
    """The arguments do not fit the tool's schema, or make no sense to it; see `violations`."""


class PolicyDenied(CallFailed):
    """Policy, or a guard under it, does not let the caller do this."""

    @property
    def rule_id(self) -> str:
        """The rule that decided; empty where none did."""
        return self.error.rule.rule_id or str(self.details.get("rule_id", ""))

    @property
    def remedy(self) -> str:
        """What an operator could change; empty where nothing is known."""
        return self.error.rule.remedy or str(self.details.get("remedy", ""))

    @property
    def missing_capabilities(self) -> Sequence[str]:
        """What the call needs and its caller does not hold."""
        return self.error.rule.missing_capabilities


class ApprovalRequired(CallFailed):
    """A person has been asked: invoke again with `approval_id` and the very same arguments once they agreed."""

    @property
    def approval_id(self) -> str:
        return self.error.approval.approval_id or str(self.details.get("approval_id", ""))

    @property
    def is_granted(self) -> bool:
        """Whether a person has agreed already, so that the call may be sent again at once."""
        return self.error.approval.state == approval_pb2.APPROVAL_STATE_APPROVED

    @property
    def expires_at(self) -> datetime | None:
        """When the approval lapses, in UTC; None where the hub does not say."""
        at = self.error.approval.expires_at
        return at.ToDatetime(UTC) if self.error.approval.HasField("expires_at") else None


class PlanRequired(CallFailed):
    """The call must be shown first: `dry_run`, then `commit`."""


class RateLimited(CallFailed):
    """A limit is used up; wait `retry_after_s`, then send the same call."""


class ToolChanged(CallFailed):
    """The tool has another definition than that of `expected_tool_digest`; nothing was done."""

    @property
    def tool_digest(self) -> str:
        """Of the definition that it has now."""
        return str(self.details.get("tool_digest", ""))


class OutcomeUnknown(CallFailed):
    """The call may have had its effect: look before calling again."""


_BY_KIND: dict[str, type[CallFailed]] = {
    ErrorKind.TOOL_NOT_FOUND: ToolNotFound,
    ErrorKind.INPUT_SCHEMA_INVALID: InvalidArguments,
    ErrorKind.INVALID_INPUT: InvalidArguments,
    ErrorKind.POLICY_DENIED: PolicyDenied,
    ErrorKind.PERMISSION_DENIED: PolicyDenied,
    ErrorKind.PATH_OUTSIDE_SANDBOX: PolicyDenied,
    ErrorKind.HTTP_DISALLOWED_HOST: PolicyDenied,
    ErrorKind.APPROVAL_REQUIRED: ApprovalRequired,
    ErrorKind.PLAN_REQUIRED: PlanRequired,
    ErrorKind.RATE_LIMITED: RateLimited,
    ErrorKind.OUTCOME_UNKNOWN: OutcomeUnknown,
    ErrorKind.TOOL_CHANGED: ToolChanged,
}


def kind_of(error: error_pb2.ToolError) -> str:
    """Its kind by name, without the enum's prefix."""
    known = error_pb2.ErrorKind.DESCRIPTOR.values_by_number.get(error.kind)
    return known.name.removeprefix(_PREFIX) if known is not None else f"UNKNOWN_{error.kind}"


def call_failed(error: error_pb2.ToolError, call_id: str) -> CallFailed:
    """The failed call as the exception of its kind."""
    return _BY_KIND.get(kind_of(error), CallFailed)(error, call_id)
