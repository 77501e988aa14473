"""One policy, immutable: the same snapshot and the same call always give the same verdict. The one in force: live.py.

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
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from toolhub_service.domain.call import PlannedCall, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Limit, Verdict
from toolhub_service.policy import refusals
from toolhub_service.policy.arguments import check_arguments
from toolhub_service.policy.conditions import ConditionFault
from toolhub_service.policy.document import PolicyDocument, canonical_bytes
from toolhub_service.policy.holdings import Holdings, missing_capabilities
from toolhub_service.policy.parsing import Lines, parse_policy
from toolhub_service.policy.selectors import Party, parties_of
from toolhub_service.policy.starter import STARTER, complete
from toolhub_service.policy.table import BoundRule, Row, Table, compile_conditions

MAX_ROWS = 16_384
"""Most rows kept; the oldest is dropped first. A row is a principal and a tool that it has called."""
MAX_PRINCIPALS = 4_096
"""Most principals kept; the oldest is dropped first."""


class PolicySnapshot:
    """Implements `domain.ports.PolicySource`."""

    __slots__ = ("_represented", "_rows", "document", "principals", "revision", "table", "version")

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
        self._represented: dict[tuple[str, str], Party | None] = {}

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
                return refusals.refuse_impersonation(planned, self.revision)
            row = self.row_of(planned)
        if row.missing or row.not_agents or context.permissions is not None:
            refusal = self.gate(planned, row)
            if refusal is not None:
                return refusal
        if call.lineage is not None and spec.name not in call.lineage.tools:
            return refusals.refuse_unlent_tool(planned, self.revision)
        # A deny has priority over every guard and every allow, wherever it is in the document.
        if row.denies and (verdict := self.first_verdict(row.denies, planned)) is not None:
            return verdict
        if row.is_guarded and (guard := check_arguments(planned, row.constraints)) is not None:
            return refusals.refuse_by_guard(planned, guard, row.constraints, self.revision)
        if row.others and (verdict := self.first_verdict(row.others, planned)) is not None:
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
        return principal.permissions is None or not missing_capabilities(principal.permissions, row.needs)

    def could_require_plan(self, principal: Principal, spec: ToolSpec) -> bool:
        row = self.row(principal, spec)
        possible = [rule.verdict for rule in row.others]
        if not row.others or row.others[-1].condition is not None:
            possible.append(row.fallback)
        return any(verdict.effect is Effect.REQUIRE_PLAN for verdict in possible)

    def principal(self, id: str) -> Principal:
        """Return a verified caller with the roles and the right to impersonate that this policy gives it."""
        known = self.principals.get(id)
        if known is None:
            known = self.apply_to_principal(Principal(id, frozenset(Role)))
            if len(self.principals) >= MAX_PRINCIPALS:
                self.principals.pop(next(iter(self.principals)), None)
            self.principals[id] = known
        return known

    def apply_to_principal(self, verified: Principal) -> Principal:
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
        return [party for id in named if (party := self._represented_party(id, own)) is not None]

    def _represented_party(self, id: str, by: str) -> Party | None:
        key = id, by
        if key not in self._represented:
            if len(self._represented) >= MAX_PRINCIPALS:
                self._represented.pop(next(iter(self._represented)), None)
            self._represented[key] = self.table.represented_party(id, by)
        return self._represented[key]

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
                return refusals.refuse_non_agent(planned, who, self.revision)
            return refusals.refuse_unknown_principal(planned, who, row.needs, self.revision)
        if row.missing:
            return refusals.refuse_missing_capabilities(
                planned, row.missing, row.lacking, row.constraints, self.revision
            )
        permissions, most = planned.call.context.permissions, planned.call.principal.permissions
        if permissions is None or row.needs <= permissions:
            return None
        if most is not None and (missing := missing_capabilities(most, row.needs)):
            return refusals.refuse_narrowed_credential(planned, missing, self.revision)
        missing = Holdings(permissions).lack(row.needs)
        return refusals.refuse_narrowed_context(planned, missing, self.revision) if missing else None

    def first_verdict(self, rules: tuple[BoundRule, ...], planned: PlannedCall) -> Verdict | None:
        """Return the verdict of the first rule that applies; a deny where its condition cannot be evaluated."""
        for rule in rules:
            if rule.condition is None:
                return rule.verdict
            try:
                if rule.condition.holds(planned):
                    return rule.verdict
            # Continuing with the next rule would let a broken condition allow what it was to forbid.
            except ConditionFault as fault:
                return deny_failed_condition(rule.verdict, fault)
        return None


def deny_failed_condition(verdict: Verdict, fault: ConditionFault) -> Verdict:
    """Return the deny of a rule whose condition cannot be evaluated."""
    return msgspec.structs.replace(
        verdict,
        effect=Effect.DENY,
        reason=f"The condition of rule {verdict.rule_id} could not be evaluated: {fault}.",
        remedy="Call with the arguments that the rule's condition reads, or ask the operator to correct it.",
        kind=ErrorKind.POLICY_DENIED,
        details={"condition_fault": True},
    )
