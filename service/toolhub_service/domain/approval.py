"""One question to a person: may this principal make exactly this call, once? Or what its tool asks in the middle."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.question import Question


class ApprovalState(Enum):
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    USED = "USED"

    __hash__ = object.__hash__
    """By identity, for a member is a singleton."""


_FIRST_PARTS = 8
"""Of a binding, in the first version of stores."""


class Binding(NamedTuple):
    """What an approval is given for. Anything else is another call and needs another approval."""

    principal: str
    tool: str
    tool_digest: str
    """sha256 (hex) of the definition."""
    args_digest: str
    """sha256 (hex) over the canonical, completed arguments."""
    policy_revision: str
    job_id: str = ""
    """The job that waits for it; empty when the caller has to invoke again."""
    agent_id: str = ""
    """For whom the principal acts; empty: for itself."""
    user_id: str = ""
    """For whom the principal acts; empty: for itself."""

    question_digest: str = ""
    """sha256 (hex) over the question's message and schema; empty when a rule asks, not the tool."""
    workspace: str = ""
    """As `Preconditions.workspace`."""
    state: str = ""
    """As `Preconditions.state`, when it was asked."""

    @property
    def parts(self) -> list[str]:
        """All that it names, without empty ones at the end that earlier versions did not know: stores find by them."""
        parts = list(self)
        while len(parts) > _FIRST_PARTS and not parts[-1]:
            del parts[-1]
        return parts

    def is_asked_by(self, principal_id: str) -> bool:
        """Whether it is a request of this principal's own, whoever carried it."""
        return principal_id in (self.principal, self.agent_id, self.user_id)


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval as the store keeps it. Every change is a new record with the next version."""

    approval_id: str
    """Minted by the hub."""
    binding: Binding
    state: ApprovalState
    tool_version: str
    args_summary_json: str
    """The arguments as an approver sees them, at most 16 KiB of JSON: no known secret, no run like a credential."""
    rule_id: str
    reason: str
    """The rule's, for the person."""
    purpose: str
    """The caller's; untrusted text."""
    call_id: str
    """The call that asked."""
    request_id: str
    requested_at_unix_ms: int
    expires_at_unix_ms: int
    """When it lapses, decided or not."""
    approvers: tuple[str, ...] = ()
    """Principals or globs that may decide; empty: whoever has the approver role."""
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    used_at_unix_ms: int = 0
    used_by_call_id: str = ""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""
    question: Question | None = None
    """What the tool asks in the middle of the call, redacted but for its continuation; None: a rule asks."""
    round: int = 0
    """Which question of this call it is, from 1; 0: a rule asks."""
    covers_rule_id: str = ""
    """The rule whose own approval the run that asked had used up: the run that follows is the same effect."""
    answer: JsonObject | None = field(default=None, repr=False)
    """To the question, fit for its schema; None until there is one. As secret as the continuation."""


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which approvals to read; empty fields match everything, and filled ones are joined by AND."""

    states: frozenset[ApprovalState] = frozenset()
    principal: str = ""
    tool: str = ""
    """A name or a glob (fnmatch, case-sensitive)."""
