"""What a failed call or RPC carries: `ToolError` in a result, `HubFailure` as a gRPC status (AIP-193).

`ToolFailure` is the only exception that crosses from guards, tools and adapters into the runtime; the runtime
turns it into a `ToolResult`. Its message is written for a model: it says what to do differently and never
carries exception text, a secret or a path outside the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from toolhub_service.domain.errors.kinds import ERROR_KINDS, ErrorKind
from toolhub_service.domain.errors.spec import HubReason
from toolhub_service.domain.json import JsonValue

# ErrorKind stands beside its table; whoever raises one finds it here, with what raises it.
__all__ = [
    "IDLE",
    "KEY_SENT",
    "NOTHING_HAPPENED",
    "STOPPED",
    "WAS_SENT",
    "ErrorKind",
    "HubFailure",
    "RemoteUnclear",
    "ToolError",
    "ToolFailure",
    "Upstream",
    "Violation",
    "refuse",
]


NOTHING_HAPPENED = "nothing_happened"
"""Among the details of an INTERNAL error or a timeout: nothing was sent, so the call had no effect."""

WAS_SENT = "was_sent"
"""Among the details of a failure: a request that may have an effect was sent, and nobody can tell whether it was
processed. The runtime makes it OUTCOME_UNKNOWN when it is final and the call is not safe to repeat."""

KEY_SENT = "idempotency_key_sent"
"""Among the details of a failure: the request carries the call's idempotency key to a host that honours it, as policy
says, so that to send it again has its effect once."""

STOPPED = "stopped"
"""Among the details of a TIMEOUT: the remote side has confirmed that the work has ended, so its outcome is known."""

IDLE = "idle_timeout_s"
"""Among the details of a TIMEOUT: the operator's limit for a call that neither answers nor reports progress."""

# The client errors of HTTP after which the same request may succeed (RFC 9110 §15.5.9, RFC 8470, RFC 6585).
_PASSING_STATUS: Final = frozenset({408, 425, 429})


class Violation(msgspec.Struct, frozen=True):
    """One broken schema rule, worded so that a model can repair the call."""

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


class Upstream(msgspec.Struct, frozen=True):
    """What a remote system answered, cut and redacted."""

    status: int
    """HTTP status, gRPC code or exit code of the upstream."""
    excerpt: str = ""
    """At most 2,000 characters of its answer, redacted."""


LONGEST_WAIT_S: Final = 300.0
"""The longest wait, in seconds, after which a caller is told to try again."""


class ToolError(msgspec.Struct, frozen=True):
    """Why a call did not succeed and what would make it succeed."""

    kind: ErrorKind
    message: str
    """For the model: what happened and what to do differently."""
    retryable: bool | None = None
    """None means: as the kind says, and of an UPSTREAM_ERROR the upstream's status."""
    retry_after_s: float | None = None
    """Seconds to wait before trying again; None when waiting does not help or is unknown."""
    violations: tuple[Violation, ...] = ()
    details: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """Facts for repair, under names that the table of kinds lists. Never a secret."""
    upstream: Upstream | None = None
    # Else one caller with little patience could open the breaker for all others.
    blames_upstream: bool | None = None
    """For the breaker alone: False when the failure says nothing about the origin that was asked (the caller chose less
    time than the tool allows by itself, or another origin failed, to which a redirect led); None: as the kind says, and
    of a timeout the call's deadline."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later and is safe to send again."""
        if self.retryable is not None:
            return self.retryable
        status = 0 if self.upstream is None else self.upstream.status
        # `status` may be a gRPC or an exit code, too; those end at 255, so that this range is HTTP's alone.
        if 400 <= status < 500 and status not in _PASSING_STATUS:
            return False
        return ERROR_KINDS[self.kind].retryable

    @property
    def invites_retry(self) -> bool:
        """What callers are told: whether to send the same call again, after a wait that somebody who works on a task
        can afford. The hub's own jobs, which wait for hours, go by `is_retryable`."""
        return self.is_retryable and (self.retry_after_s or 0.0) <= LONGEST_WAIT_S

    @property
    def invited_after_s(self) -> float | None:
        """What callers are told to wait; None when they are not to send it again, or when that is unknown."""
        return self.retry_after_s if self.invites_retry else None


class ToolFailure(Exception):
    """A call was refused, or ran and failed. Raised by steps, guards, tools and adapters."""

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
    """The request itself failed (not the tool): becomes a gRPC status with ErrorInfo.

    Raised by stores, registry and transport for administrative RPCs; a tool call answers `ToolResult` instead.
    """

    def __init__(self, reason: HubReason, message: str, *, retry_after_s: float | None = None, **metadata: str) -> None:
        """`retry_after_s`: None means as the reason says. `metadata`: under names that the reason lists."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = reason.retry_after_s if retry_after_s is None else retry_after_s
        self.metadata = metadata


class RemoteUnclear(Exception):
    """Nobody can tell what became of work on a remote side. Raised by `RemoteJob`s; `reason` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
