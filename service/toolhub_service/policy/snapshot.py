"""One policy, immutable: the same snapshot and the same call always give the same verdict.

A decision walks: identity, capabilities (grant, then the call's own permissions), DENY rules, argument guards,
REQUIRE_APPROVAL, REQUIRE_PLAN, ALLOW; what is left is allowed by the grant, or wants a plan when destructive.
A condition that fails is a deny.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.principal import Principal, Role
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Limit, Verdict
from toolhub_service.policy import refusals
from toolhub_service.policy.arguments import judge_arguments
from toolhub_service.policy.conditions import ConditionFault
from toolhub_service.policy.document import PolicyDocument, canonical_bytes
from toolhub_service.policy.holdings import Holdings
from toolhub_service.policy.parsing import Lines, parse_policy
from toolhub_service.policy.starter import STARTER, complete
from toolhub_service.policy.table import BoundRule, Row, Table, compile_conditions

MAX_ROWS = 16_384
"""Rows kept; the oldest goes first. One is a principal and a tool it has asked for."""
MAX_PRINCIPALS = 4_096
"""Principals kept; the oldest goes first."""


class PolicySnapshot:
    """Implements `domain.ports.PolicySource`."""

    __slots__ = ("_principals", "_rows", "document", "revision", "table")

    def __init__(self, document: PolicyDocument = STARTER, lines: Lines | None = None) -> None:
        """Raises InvalidPolicy when a condition cannot be compiled."""
        conditions = compile_conditions(document, lines or {})
        self.document = complete(document)
        self.revision = hashlib.sha256(canonical_bytes(self.document)).hexdigest()
        self.table = Table(self.document, self.revision, conditions)
        self._rows: dict[tuple[str, str, str], Row] = {}
        self._principals: dict[str, Principal] = {}

    @classmethod
    def load(cls, source: str | Mapping[str, JsonValue]) -> PolicySnapshot:
        """A snapshot of YAML text or of data already loaded. Raises InvalidPolicy."""
        return cls(*parse_policy(source))

    def decide(self, planned: PlannedCall) -> Verdict:
        call = planned.call
        spec = planned.spec
        principal = call.principal
        context = call.context
        row = self._rows.get((principal.id, spec.name, spec.digest)) or self.row(principal.id, spec)
        if (context.agent_id or context.user_id) and self.is_impostor(planned, row):
            return refusals.impostor(planned, self.revision)
        if row.missing or not row.is_known or context.permissions is not None:
            refusal = self.gate(planned, row)
            if refusal is not None:
                return refusal
        if row.denies and (verdict := self.first(row.denies, planned)) is not None:
            return verdict
        if row.is_guarded and (guard := judge_arguments(planned, row.constraints)) is not None:
            return refusals.guarded(planned, guard, row.constraints, self.revision)
        if row.others and (verdict := self.first(row.others, planned)) is not None:
            return verdict
        return row.fallback

    def limits(self, principal_id: str, spec: ToolSpec) -> tuple[Limit, ...]:
        return self.row(principal_id, spec).fallback.limits

    def could_allow(self, principal_id: str, spec: ToolSpec) -> bool:
        row = self.row(principal_id, spec)
        always_denied = bool(row.denies) and row.denies[0].condition is None
        return row.is_known and not row.missing and not always_denied

    def principal(self, id: str) -> Principal:
        """A verified caller with the roles and the right to impersonate that this policy gives it."""
        known = self._principals.get(id)
        if known is None:
            roles = frozenset(Role(name) for name in self.table.roles_of(id))
            known = Principal(id=id, roles=roles, may_impersonate=self.table.may_impersonate(id))
            if len(self._principals) >= MAX_PRINCIPALS:
                self._principals.pop(next(iter(self._principals)), None)
            self._principals[id] = known
        return known

    def row(self, principal_id: str, spec: ToolSpec) -> Row:
        """What is settled for a principal and a tool, kept for the next call."""
        key = (principal_id, spec.name, spec.digest)
        row = self._rows.get(key)
        if row is None:
            row = self.table.row(principal_id, spec)
            if len(self._rows) >= MAX_ROWS:
                self._rows.pop(next(iter(self._rows)), None)
            self._rows[key] = row
        return row

    def is_impostor(self, planned: PlannedCall, row: Row) -> bool:
        principal = planned.call.principal
        if not refusals.acts_for_another(planned.call.context, principal.id):
            return False
        return not (principal.may_impersonate or row.may_impersonate)

    def gate(self, planned: PlannedCall, row: Row) -> Verdict | None:
        """The capability gate: the grant, narrowed by the call's own permissions, must cover what the tool needs."""
        if not row.is_known:
            if self.table.roles_of(planned.call.principal.id):
                return refusals.no_agent(planned, self.revision)
            return refusals.unknown_principal(planned, row.needs, self.revision)
        if row.missing:
            return refusals.lacks_capabilities(planned, row.missing, row.constraints, self.revision)
        permissions = planned.call.context.permissions
        if permissions is None or row.needs <= permissions:
            return None
        missing = Holdings(permissions).lack(row.needs)
        return refusals.narrowed_too_far(missing, self.revision) if missing else None

    def first(self, rules: tuple[BoundRule, ...], planned: PlannedCall) -> Verdict | None:
        """The verdict of the first rule that holds; a deny where a condition cannot be answered."""
        for rule in rules:
            if rule.condition is None:
                return rule.verdict
            try:
                if rule.condition.holds(planned):
                    return rule.verdict
            except ConditionFault as fault:
                return faulted(rule.verdict, fault)
        return None


def faulted(verdict: Verdict, fault: ConditionFault) -> Verdict:
    """The deny that a rule gives when its condition cannot be answered."""
    return replace(
        verdict,
        effect=Effect.DENY,
        reason=f"The condition of rule {verdict.rule_id} could not be answered: {fault}.",
        remedy="Call with the arguments that the rule looks at, or ask the operator to mend its condition.",
        kind=ErrorKind.POLICY_DENIED,
        details={"condition_fault": True},
    )
