"""Events of the audit log, their place in its chains, and what verifying it finds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from msgspec import Struct

from toolhub_service.domain.call import Owners
from toolhub_service.domain.errors.kinds import ErrorKind


class EventType(Enum):
    TOOL_CALLED = "TOOL_CALLED"
    TOOL_RESULT = "TOOL_RESULT"
    POLICY_DENIED = "POLICY_DENIED"
    RETRY = "RETRY"
    APPROVAL_ASKED = "APPROVAL_ASKED"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    APPROVAL_USED = "APPROVAL_USED"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    JOB_SUBMITTED = "JOB_SUBMITTED"
    JOB_STATE = "JOB_STATE"
    PIN_CREATED = "PIN_CREATED"
    PIN_DRIFTED = "PIN_DRIFTED"
    PIN_DECIDED = "PIN_DECIDED"
    TOOL_REGISTERED = "TOOL_REGISTERED"
    TOOL_UNREGISTERED = "TOOL_UNREGISTERED"
    CONFIG_LOADED = "CONFIG_LOADED"
    CONFIG_REJECTED = "CONFIG_REJECTED"
    HUB_STARTED = "HUB_STARTED"
    HUB_STOPPED = "HUB_STOPPED"
    AUTH_FAILED = "AUTH_FAILED"
    ROLE_REFUSED = "ROLE_REFUSED"
    AUDIT_READ = "AUDIT_READ"
    APPROVAL_REVEALED = "APPROVAL_REVEALED"
    ARTIFACT_DELETED = "ARTIFACT_DELETED"
    CREDENTIAL_SET = "CREDENTIAL_SET"
    CREDENTIAL_REVOKED = "CREDENTIAL_REVOKED"


# gc=False here and in other records: thousands are created, and immutable values form no cycles.
class Event(Struct, frozen=True, gc=False):
    """One audit event before it is chained. Text fields are redacted by the log before they are written."""

    type: EventType
    at_unix_ms: int
    principal: str = ""
    tool: str = ""
    tool_digest: str = ""
    call_id: str = ""
    request_id: str = ""
    args_digest: str = ""
    args_summary: str = ""
    """Canonical JSON of the arguments, cut to 1 KiB."""
    purpose: str = ""
    policy_revision: str = ""
    rule_id: str = ""
    outcome: str = ""
    """`ok`, or the error kind."""
    duration_us: int = 0
    attributes: Mapping[str, str] = MappingProxyType({})
    user_id: str = ""
    """From the call's context, like the next three: for whom, and for which work."""
    agent_id: str = ""
    task_id: str = ""
    session_id: str = ""
    labels: Mapping[str, str] = MappingProxyType({})
    """The call's id in this log."""
    result_digest: str = ""
    """sha256 (hex) over the canonical JSON of the answered value."""
    result_summary: str = ""
    """That value where it is short, else its outline; cut to 1 KiB."""


class ChainedEvent(Struct, frozen=True, gc=False):
    """An event with its position in its writer's chain."""

    event: Event
    writer: str
    sequence: int
    """From 1, without gaps per writer."""
    previous_mac: str
    """Hex; 64 zeros for the first."""
    mac: str
    """Hex HMAC-SHA256 over writer, sequence, previous mac and the canonical event."""
    key_id: str


class EventFilter(Struct, frozen=True, gc=False):
    """Which events to read; empty fields match everything."""

    principal: str = ""
    tool: str = ""
    """A name, or a glob with `*`, `?` or `[` (fnmatch, case-sensitive)."""
    types: frozenset[EventType] = frozenset()
    call_id: str = ""
    request_id: str = ""
    user_id: str = ""
    agent_id: str = ""
    task_id: str = ""
    session_id: str = ""
    outcome: str = ""
    error_kinds: frozenset[ErrorKind] = frozenset()
    rule_id: str = ""
    labels: Mapping[str, str] = MappingProxyType({})
    writer: str = ""
    from_unix_ms: int = 0
    to_unix_ms: int = 0
    """Exclusive; 0: no end."""
    owners: Owners | None = None
    """Whose events; those without a principal, such as the hub's own, match only None."""


class ChainFault(Struct, frozen=True, gc=False):
    writer: str
    sequence: int
    """The first sequence that is not trustworthy."""
    reason: str


class Verification(Struct, frozen=True, gc=False):
    events_checked: int
    writers: int
    faults: tuple[ChainFault, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults
