"""The policy in force: a snapshot that a reload replaces as a whole and, if configured, a shadow candidate.

A reload is one assignment: a call sees the old policy or the new one, never a mixture. An invalid document changes
nothing and reports why. A shadow decides every call too; differences are reported, but the live verdict always
applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from toolhub_service.domain.call import PlannedCall, Principal, Tenancy
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.storage import StorageTerms
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Limit, Verdict
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.policy.storage import DEFAULT_TERMS

Source = str | Mapping[str, JsonValue]
"""YAML text, or data already loaded from it."""


class Change(msgspec.Struct, frozen=True):
    """Whether a new document is in force, and why not."""

    applied: bool
    """False: the old policy stays, for the reason in `problem`."""
    revision: str
    """The revision now in force."""
    previous_revision: str
    problem: str = ""
    """For the operator, with line and path; empty when applied."""


class Difference(msgspec.Struct, frozen=True):
    """One call on which the shadow disagrees with the live policy."""

    planned: PlannedCall
    live: Verdict
    shadow: Verdict


class LivePolicy:
    """Implements `domain.ports.PolicySource` with the snapshot in force."""

    def __init__(
        self,
        snapshot: PolicySnapshot | None = None,
        on_difference: Callable[[Difference], None] | None = None,
        storage: StorageTerms = DEFAULT_TERMS,
    ) -> None:
        """`on_difference` is called with each disagreement of a shadow; its exceptions are counted, not raised.
        `storage`: what a principal may store where the policy does not say."""
        self._storage = storage
        self._snapshot = snapshot or PolicySnapshot()
        self._shadow: PolicySnapshot | None = None
        self._on_difference = on_difference
        self.version = 0
        """Incremented by every change of the live policy or the shadow: cached decisions are valid for one version."""
        self._listeners: list[Callable[[], None]] = []
        self.shadow_faults = 0
        """Number of failures of the shadow or the callback; a verdict never depends on either."""

    @property
    def revision(self) -> str:
        return self._snapshot.revision

    @property
    def snapshot(self) -> PolicySnapshot:
        return self._snapshot

    def principal(self, id: str) -> Principal:
        """Return a verified caller under the policy now in force."""
        snapshot = self._snapshot
        return snapshot.principals.get(id) or snapshot.principal(id)

    def again(self, kept: Principal) -> Principal:
        """Return a principal that was verified before, by a token or for a job, under the policy now in force: its
        credential's facts stay, and it has no more roles than it had."""
        known = self.principal(kept.id)
        # A bare id is the same principal everywhere, so one object of it is shared.
        has_more = kept.issuer or kept.actors or kept.groups or kept.permissions is not None
        if has_more or kept.tenant not in ("", known.tenant):
            return self._snapshot.apply_to_principal(kept)
        return known

    @property
    def shadow_revision(self) -> str:
        """The candidate's revision; empty when there is none."""
        return self._shadow.revision if self._shadow else ""

    def decide(self, planned: PlannedCall) -> Verdict:
        verdict = self._snapshot.decide(planned)
        if self._shadow is not None:
            self._compare(self._shadow, planned, verdict)
        return verdict

    def decide_beforehand(self, principal: Principal, spec: ToolSpec) -> Verdict | None:
        """None while there is a shadow, which must see each call."""
        return None if self._shadow is not None else self._snapshot.decide_beforehand(principal, spec)

    def limits(self, principal: Principal, spec: ToolSpec) -> tuple[Limit, ...]:
        return self._snapshot.limits(principal, spec)

    def could_allow(self, principal: Principal, spec: ToolSpec) -> bool:
        return self._snapshot.could_allow(principal, spec)

    def could_require_plan(self, principal: Principal, spec: ToolSpec) -> bool:
        return self._snapshot.could_require_plan(principal, spec)

    def tenancy(self, name: str) -> Tenancy | None:
        """Return what principals of the tenant see of others; None where the policy has no tenants."""
        tenants = self._snapshot.table.tenants
        return None if tenants is None else tenants.tenancy_named(name)

    def tenant_of(self, principal_id: str) -> str:
        """As `domain.call.TenantDirectory`."""
        tenants = self._snapshot.table.tenants
        return "" if tenants is None else tenants.of(principal_id)

    def tenancy_of(self, principal_id: str) -> Tenancy | None:
        tenants = self._snapshot.table.tenants
        return None if tenants is None else tenants.tenancy(principal_id)

    def storage_of(self, principal_id: str) -> StorageTerms:
        """As `domain.storage.StorageDirectory`."""
        return self._snapshot.table.storage.of(principal_id, self._storage)

    def replace(self, source: Source) -> Change:
        """Put a new document in force, as a whole or not at all."""
        before = self._snapshot.revision
        try:
            # Compiled completely before it is assigned: a failure leaves the former policy in force.
            self._snapshot = PolicySnapshot.load(source)
        except InvalidPolicy as error:
            return Change(applied=False, revision=before, previous_revision=before, problem=str(error))
        self.version += 1
        for listener in self._listeners:
            listener()
        return Change(applied=True, revision=self._snapshot.revision, previous_revision=before)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the live policy or the shadow; it must not raise."""
        self._listeners.append(listener)

    def shadow(self, source: Source | None) -> Change:
        """Set the shadow candidate; None removes it. An invalid document leaves the candidate unchanged."""
        before = self.shadow_revision
        try:
            self._shadow = None if source is None else PolicySnapshot.load(source)
        except InvalidPolicy as error:
            return Change(applied=False, revision=before, previous_revision=before, problem=str(error))
        self.version += 1
        return Change(applied=True, revision=self.shadow_revision, previous_revision=before)

    def _compare(self, shadow: PolicySnapshot, planned: PlannedCall, live: Verdict) -> None:
        try:
            other = shadow.decide(planned)
            if self._on_difference is not None and _differ(live, other):
                self._on_difference(Difference(planned, live, other))
        except Exception:  # noqa: BLE001 - an observer must never change a verdict; the owner reports the count
            self.shadow_faults += 1


def _differ(live: Verdict, shadow: Verdict) -> bool:
    return (live.effect, live.rule_id, live.kind, live.constraints, live.limits) != (
        shadow.effect,
        shadow.rule_id,
        shadow.kind,
        shadow.constraints,
        shadow.limits,
    )
