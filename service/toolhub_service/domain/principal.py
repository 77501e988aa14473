"""Who is calling: always from a verified credential, never from the message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Which group of RPCs a principal may use; the tools it may call are a matter of grants and rules."""

    AGENT = "agent"
    """ToolService, JobService, ArtifactService."""
    OPERATOR = "operator"
    """RegistryService besides."""
    APPROVER = "approver"
    """ApprovalService."""
    AUDITOR = "auditor"
    """AuditService."""

    __hash__ = object.__hash__
    """By identity, for a member is a singleton: Enum's own hash is Python code, and every RPC looks up a role."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller."""

    id: str
    """Unique name: `local`, an API key's name, a JWT subject or a SPIFFE id."""
    roles: frozenset[Role] = frozenset({Role.AGENT})
    may_impersonate: bool = False
    """Whether `agent_id` and `user_id` of a message may differ from `id`."""
