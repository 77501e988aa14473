"""What policy decided, by which rule, and what would change its mind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from toolhub_service.domain.constraints import Constraints
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.json import JsonValue


class Effect(Enum):
    ALLOW = "ALLOW"
    DENY = "DENY"
    REQUIRE_APPROVAL = "REQUIRE_APPROVAL"
    REQUIRE_PLAN = "REQUIRE_PLAN"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that applies to a call; several may."""

    id: str
    """Names the bucket: limits with equal ids share one count."""
    rate_per_s: float | None = None
    burst: int = 1
    concurrency: int | None = None
    quota: int | None = None
    """Calls per `quota_window_s`."""
    quota_window_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision. The same snapshot and the same call always give the same verdict."""

    effect: Effect
    policy_revision: str
    """Digest of the policy that decided."""
    rule_id: str
    """The rule, grant or guard that decided, such as `grant:local` or `egress`."""
    reason: str
    remedy: str = ""
    """What the caller or an operator can do; empty when nothing is needed."""
    kind: ErrorKind = ErrorKind.POLICY_DENIED
    """How a refusal is told."""
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)
    limits: tuple[Limit, ...] = ()

    @property
    def allows(self) -> bool:
        return self.effect is Effect.ALLOW
