"""What can go wrong with a call, and how it is told to the one who must repair it (AIP-193 in spirit).

`ToolFailure` is the only exception that crosses from guards, tools and adapters into the runtime; the runtime
turns it into a `ToolResult`. Its message is written for a model: it says what to do differently and never
carries exception text, a secret or a path outside the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from toolhub_service.domain.json import JsonValue


class ErrorKind(Enum):
    """Every way a call can fail. The value is the wire name; docs/errors.md tells when each is raised."""

    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_QUARANTINED = "TOOL_QUARANTINED"
    TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"
    INPUT_SCHEMA_INVALID = "INPUT_SCHEMA_INVALID"
    INVALID_INPUT = "INVALID_INPUT"
    POLICY_DENIED = "POLICY_DENIED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_REJECTED = "APPROVAL_REJECTED"
    PLAN_REQUIRED = "PLAN_REQUIRED"
    PATH_OUTSIDE_SANDBOX = "PATH_OUTSIDE_SANDBOX"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    HTTP_DISALLOWED_HOST = "HTTP_DISALLOWED_HOST"
    HTTP_TIMEOUT = "HTTP_TIMEOUT"
    HTTP_TOO_LARGE = "HTTP_TOO_LARGE"
    NETWORK_ERROR = "NETWORK_ERROR"
    IO_ERROR = "IO_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    UPSTREAM_ERROR = "UPSTREAM_ERROR"
    OUTPUT_SCHEMA_INVALID = "OUTPUT_SCHEMA_INVALID"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    INTERNAL = "INTERNAL"

    @property
    def retryable(self) -> bool:
        """Whether the same call, unchanged, may succeed later."""
        return self in _RETRYABLE


NOTHING_HAPPENED = "nothing_happened"
"""Among the details of an INTERNAL error of an adapter: it knows that the call had no effect, whatever broke."""

_RETRYABLE = frozenset(
    {
        ErrorKind.TOOL_UNAVAILABLE,
        ErrorKind.HTTP_TIMEOUT,
        ErrorKind.NETWORK_ERROR,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CIRCUIT_OPEN,
        ErrorKind.TIMEOUT,
        ErrorKind.UPSTREAM_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken schema rule, told so that a model can repair the call."""

    path: str
    """JSON Pointer (RFC 6901) to the offending value; empty for the whole document."""
    keyword: str
    """The JSON Schema keyword that failed, such as `required` or `enum`."""
    message: str
    """One sentence, without the offending value when its name looks secret."""
    expected: JsonValue = None
    """What would have been accepted: the enum's values, the type, the limit, the missing property's schema."""
    hint: str = ""
    """A suggested repair, such as the nearest known name; empty when there is none."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What a remote system answered, cut and redacted."""

    status: int
    """HTTP status, gRPC code or exit code of the upstream."""
    excerpt: str = ""
    """At most 2,000 characters of its answer, redacted."""


@dataclass(frozen=True, slots=True)
class ToolError:
    """Why a call did not succeed and what would make it succeed."""

    kind: ErrorKind
    message: str
    """For the model: what happened and what to do differently."""
    retryable: bool | None = None
    """None means: as the kind says."""
    retry_after_s: float | None = None
    """Seconds to wait before trying again; None when waiting does not help or is unknown."""
    violations: tuple[Violation, ...] = ()
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    """Facts for repair: allowed hosts, limits, missing capabilities, rule id. Never a secret."""
    upstream: Upstream | None = None
    blames_upstream: bool | None = None
    """For the breaker alone: False when the failure says nothing about the origin that was asked (the caller chose less
    time than the tool allows by itself, or another origin failed, to which a redirect led); None: as the kind says, and
    of a timeout the call's deadline."""

    @property
    def is_retryable(self) -> bool:
        return self.kind.retryable if self.retryable is None else self.retryable


class ToolFailure(Exception):
    """A call was judged or ran and did not succeed. Raised by steps, guards, tools and adapters."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.kind.value)
        self.error = error


def refuse(
    kind: ErrorKind,
    message: str,
    *,
    retry_after_s: float | None = None,
    violations: tuple[Violation, ...] = (),
    upstream: Upstream | None = None,
    retryable: bool | None = None,
    blames_upstream: bool | None = None,
    **details: JsonValue,
) -> ToolFailure:
    """Shorthand for `raise refuse(KIND, "what to do differently", allowed_hosts=[…])`."""
    return ToolFailure(
        ToolError(
            kind=kind,
            message=message,
            retryable=retryable,
            retry_after_s=retry_after_s,
            violations=violations,
            details=details,
            upstream=upstream,
            blames_upstream=blames_upstream,
        )
    )


class HubFailure(Exception):
    """The request itself failed (not the tool): becomes a gRPC status with ErrorInfo. `reason` is UPPER_SNAKE.

    Raised by stores, registry and transport for administrative RPCs; a tool call answers `ToolResult` instead.
    """

    def __init__(
        self, status: HubStatus, reason: str, message: str, *, retry_after_s: float | None = None, **metadata: str
    ) -> None:
        """`retry_after_s`: when asking again may help; None: waiting does not, or nobody knows."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.metadata = metadata


class HubStatus(Enum):
    """The gRPC status names a `HubFailure` may take (google.rpc.Code)."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class RemoteUnclear(Exception):
    """Nobody can tell what became of work on a remote side. Raised by `RemoteJob`s; `reason` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
