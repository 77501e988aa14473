"""One policy, immutable: the same snapshot and the same call always give the same verdict. `LivePolicy` holds the one
in force.

A decision checks in this order; the first refusal decides:

1. identity, then capabilities (the grants of the principal, of those who act for it and of those for whom it acts:
   selectors.py; then the call's own permissions), then the tools that the calling call may use: here
2. DENY rules: which ones apply to caller and tool is computed in table.py, their `when:` in conditions.py
3. argument guards: arguments.py
4. REQUIRE_APPROVAL, REQUIRE_PLAN and ALLOW rules, as 2
5. otherwise the grant allows the call, or requires a plan when it is destructive: table.py

A condition that fails is a deny. What a refusal says, with the lines of policy.yaml that change it: refusals.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from toolhub_service.domain.call import PlannedCall, Principal, Role, Tenancy
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.storage import StorageTerms
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Limit, Verdict
from toolhub_service.policy import refusals
from toolhub_service.policy.arguments import check_arguments
from toolhub_service.policy.conditions import ConditionFault
from toolhub_service.policy.document import STARTER, PolicyDocument, canonical_bytes, complete
from toolhub_service.policy.parsing import InvalidPolicy, Lines, parse_policy
from toolhub_service.policy.selectors import Party, parties_of
from toolhub_service.policy.storage import DEFAULT_TERMS
from toolhub_service.policy.table import BoundRule, Holdings, Row, Table, compile_conditions, left_out

MAX_ROWS = 16_384
"""Most rows kept; the oldest is dropped first. A row is a principal and a tool that it has called."""
MAX_PRINCIPALS = 4_096
"""Most principals kept; the oldest is dropped first."""


class PolicySnapshot:
    """Implements `domain.ports.PolicySource`."""

    __slots__ = ("_rows", "_spoken_of", "document", "principals", "revision", "table", "version")

    def __init__(self, document: PolicyDocument = STARTER, lines: Lines | None = None) -> None:
        """Raises InvalidPolicy when a condition cannot be compiled."""
        conditions = compile_conditions(document, lines or {})
        self.document = complete(document)
        self.revision = hashlib.sha256(canonical_bytes(self.document)).hexdigest()
        self.table = Table(self.document, self.revision, conditions)
        self.version = 0
        """A snapshot never changes."""
        self._rows: dict[tuple[str, str, str], Row] = {}
        self.principals: dict[str, Principal] = {}
        self._spoken_of: dict[tuple[str, str], Party | None] = {}

    @classmethod
    def load(cls, source: str | Mapping[str, JsonValue]) -> PolicySnapshot:
        """Return a snapshot of YAML text or of data already loaded. Raises InvalidPolicy."""
        return cls(*parse_policy(source))

    def decide(self, planned: PlannedCall) -> Verdict:
        call = planned.call
        spec = planned.spec
        principal = call.principal
        context = call.context
        # Looked up here as well, because every call comes here: a hit costs no function call.
        row = self._rows.get((principal.key, spec.name, spec.digest)) or self.row(principal, spec)
        if (context.agent_id or context.user_id) and refusals.acts_for_another(context, principal.id):
            if not (principal.may_impersonate or row.may_impersonate):
                return refusals.impersonator(planned, self.revision)
            row = self.row_of(planned)
        if row.missing or row.not_agents or context.permissions is not None:
            refusal = self.gate(planned, row)
            if refusal is not None:
                return refusal
        if call.lineage is not None and spec.name not in call.lineage.tools:
            return refusals.not_lent(planned, self.revision)
        # A deny has priority over every guard and every allow, wherever it is in the document.
        if row.denies and (verdict := self.first(row.denies, planned)) is not None:
            return verdict
        if row.is_guarded and (guard := check_arguments(planned, row.constraints)) is not None:
            return refusals.guarded(planned, guard, row.constraints, self.revision)
        if row.others and (verdict := self.first(row.others, planned)) is not None:
            return verdict
        return row.fallback

    def decide_beforehand(self, principal: Principal, spec: ToolSpec) -> Verdict | None:
        """Return the verdict of `decide`, by the same order, if neither arguments nor context can change it; else
        None."""
        row = self.row(principal, spec)
        if row.missing or row.not_agents:
            return None  # the refusal says what these arguments would need
        if row.denies:
            return row.denies[0].verdict if row.denies[0].condition is None else None
        if row.is_guarded:
            return None
        if row.others:
            return row.others[0].verdict if row.others[0].condition is None else None
        return row.fallback

    def limits(self, principal: Principal, spec: ToolSpec) -> tuple[Limit, ...]:
        return self.row(principal, spec).fallback.limits

    def could_allow(self, principal: Principal, spec: ToolSpec) -> bool:
        row = self.row(principal, spec)
        always_denied = bool(row.denies) and row.denies[0].condition is None
        if row.not_agents or row.missing or always_denied:
            return False
        return principal.permissions is None or not left_out(principal.permissions, row.needs)

    def principal(self, id: str) -> Principal:
        """Return a verified caller with the roles and the right to impersonate that this policy gives it."""
        known = self.principals.get(id)
        if known is None:
            known = self.described(Principal(id, frozenset(Role)))
            if len(self.principals) >= MAX_PRINCIPALS:
                self.principals.pop(next(iter(self.principals)), None)
            self.principals[id] = known
        return known

    def described(self, verified: Principal) -> Principal:
        """Return a principal whose credential says more than an id, under this policy: it has the roles that policy and
        credential both give, and that all who act for it have too."""
        parties, tenants = parties_of(verified), self.table.tenants
        roles = verified.roles & {Role(name) for name in self.table.roles_of(parties)}
        tenancy = None if tenants is None else tenants.tenancy(verified.id)
        return replace(
            verified,
            roles=roles,
            may_impersonate=self.table.may_impersonate(parties),
            tenant=verified.tenant if tenancy is None else tenancy.name,
            tenancy=tenancy,
        )

    def row(self, principal: Principal, spec: ToolSpec) -> Row:
        """Return the row of a principal and a tool, kept for the next call."""
        return self._row((principal.key, spec.name, spec.digest), principal, spec, ())

    def row_of(self, planned: PlannedCall) -> Row:
        """Return the row of a call, which may be made for others: those that the policy knows must have its rights too,
        and a rule for any of them applies."""
        principal, spec, others = planned.call.principal, planned.spec, self.others_of(planned)
        if not others:
            return self.row(principal, spec)
        return self._row((f"{principal.key}\0{others}", spec.name, spec.digest), principal, spec, others)

    def others_of(self, planned: PlannedCall) -> list[Party]:
        """Return those whom the message names besides the principal, if the policy mentions them."""
        context, own = planned.call.context, planned.call.principal.id
        named = sorted({context.agent_id, context.user_id} - {"", own})
        return [party for id in named if (party := self._spoken_for(id, own)) is not None]

    def _spoken_for(self, id: str, by: str) -> Party | None:
        key = id, by
        if key not in self._spoken_of:
            if len(self._spoken_of) >= MAX_PRINCIPALS:
                self._spoken_of.pop(next(iter(self._spoken_of)), None)
            self._spoken_of[key] = self.table.spoken_for(id, by)
        return self._spoken_of[key]

    def _row(self, key: tuple[str, str, str], principal: Principal, spec: ToolSpec, others: Sequence[Party]) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self.table.row(parties_of(principal, others), spec)
            # Tokens may name any number of principals, so the number of rows is limited.
            if len(self._rows) >= MAX_ROWS:
                self._rows.pop(next(iter(self._rows)), None)
            self._rows[key] = row
        return row

    def gate(self, planned: PlannedCall, row: Row) -> Verdict | None:
        """The capability gate: the grant, narrowed by the call's own permissions, must cover what the tool needs."""
        if row.not_agents:
            (who, has_roles), *_ = row.not_agents
            if has_roles:
                return refusals.no_agent(planned, who, self.revision)
            return refusals.unknown_principal(planned, who, row.needs, self.revision)
        if row.missing:
            return refusals.lacks_capabilities(planned, row.missing, row.lacking, row.constraints, self.revision)
        permissions, most = planned.call.context.permissions, planned.call.principal.permissions
        if permissions is None or row.needs <= permissions:
            return None
        if most is not None and (missing := left_out(most, row.needs)):
            return refusals.narrowed_credential(planned, missing, self.revision)
        missing = Holdings(permissions).lack(row.needs)
        return refusals.narrowed_too_far(planned, missing, self.revision) if missing else None

    def first(self, rules: tuple[BoundRule, ...], planned: PlannedCall) -> Verdict | None:
        """Return the verdict of the first rule that applies; a deny where its condition cannot be evaluated."""
        for rule in rules:
            if rule.condition is None:
                return rule.verdict
            try:
                if rule.condition.holds(planned):
                    return rule.verdict
            # Continuing with the next rule would let a broken condition allow what it was to forbid.
            except ConditionFault as fault:
                return faulted(rule.verdict, fault)
        return None


def faulted(verdict: Verdict, fault: ConditionFault) -> Verdict:
    """Return the deny of a rule whose condition cannot be evaluated."""
    return msgspec.structs.replace(
        verdict,
        effect=Effect.DENY,
        reason=f"The condition of rule {verdict.rule_id} could not be evaluated: {fault}.",
        remedy="Call with the arguments that the rule's condition reads, or ask the operator to correct it.",
        kind=ErrorKind.POLICY_DENIED,
        details={"condition_fault": True},
    )


# The policy in force: a snapshot that a reload replaces as a whole and, if configured, a shadow candidate.
#
# A reload is one assignment: a call sees the old policy or the new one, never a mixture. An invalid document changes
# nothing and reports why. A shadow decides every call too; differences are reported, but the live verdict always
# applies.

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
            return self._snapshot.described(kept)
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

    def tenancy(self, name: str) -> Tenancy | None:
        """Return what principals of the tenant see of others; None where the policy has no tenants."""
        tenants = self._snapshot.table.tenants
        return None if tenants is None else tenants.named(name)

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
