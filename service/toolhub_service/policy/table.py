"""The decision table: what a policy says about one principal and one tool, computed once.

Everything that does not depend on arguments or context is computed here: held capabilities, the applicable rules in
order of precedence, constraints, limits and the final verdicts. A decision (decide.py) is then a dictionary lookup
and, where rules have conditions or the tool has guarded arguments, their evaluation: about a microsecond, where engines
that scan all rules take fifty and more.

Precedence: DENY, REQUIRE_APPROVAL, REQUIRE_PLAN, ALLOW; within one effect the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, ToolSpec, canonical_capabilities
from toolhub_service.domain.verdict import Constraints, DeniedCommand, Effect, Limit, Verdict
from toolhub_service.policy.conditions import Condition
from toolhub_service.policy.document import Approval, LimitRule, PolicyDocument, Rule
from toolhub_service.policy.guard_values import command_rules, egress_rule, sandbox
from toolhub_service.policy.holdings import Holdings
from toolhub_service.policy.parsing import Lines, invalid
from toolhub_service.policy.patterns import Patterns
from toolhub_service.policy.selectors import Party, Selectors, party_of_id
from toolhub_service.policy.storage import StorageRules
from toolhub_service.policy.tenants import EVERY, UNASSIGNED, Tenants

PRECEDENCE = (Effect.DENY, Effect.REQUIRE_APPROVAL, Effect.REQUIRE_PLAN, Effect.ALLOW)
PLAN_RULE_ID = "destructive_requires_plan"
APPROVAL_RULE_ID = "approval_by_default"
TENANTS_RULE_ID = "tenants"
PLAN_REMEDY = "Invoke with mode DRY_RUN first, check the plan, then invoke with its plan_digest and the same arguments."
APPROVAL_REMEDY = "Wait until a person has decided, then invoke again with the approval_id and the same arguments."

_KINDS = {
    Effect.DENY: ErrorKind.POLICY_DENIED,
    Effect.REQUIRE_APPROVAL: ErrorKind.APPROVAL_REQUIRED,
    Effect.REQUIRE_PLAN: ErrorKind.PLAN_REQUIRED,
    Effect.ALLOW: ErrorKind.POLICY_DENIED,
}
Conditions = dict[str, Condition]

_REMEDIES = {
    Effect.DENY: "Do without this call: it gets the same answer until an operator changes the rule.",
    Effect.REQUIRE_APPROVAL: APPROVAL_REMEDY,
    Effect.REQUIRE_PLAN: PLAN_REMEDY,
}


class BoundRule(msgspec.Struct, frozen=True):
    """A rule that applies to the row's principal and tool, with its verdict when the condition is true."""

    condition: Condition | None
    verdict: Verdict


class Row(msgspec.Struct, frozen=True):
    """What the policy says of one tool and one principal, with the parties that act for it or for which it acts."""

    needs: frozenset[str]
    """The tool's capabilities by their current names."""
    missing: tuple[str, ...]
    """Capabilities that the principal, or another whose rights the call needs, has no grant for, sorted."""
    lacking: tuple[tuple[str, tuple[str, ...]], ...]
    """(id, its missing capabilities) of each of these parties that lacks some."""
    not_agents: tuple[tuple[str, bool], ...]
    """(id, whether it has other roles) of each party whose rights the call needs and that is not an agent, neither by
    `roles` nor by a grant. If there is one, every call is denied."""
    denies: tuple[BoundRule, ...]
    others: tuple[BoundRule, ...]
    """Requiring and allowing rules in order of precedence."""
    fallback: Verdict
    """Verdict when no rule applies: ALLOW by grant, or the policy's default for the tool's capabilities."""
    is_guarded: bool
    may_impersonate: bool
    constraints: Constraints


class CompiledRule(msgspec.Struct, frozen=True):
    rule: Rule
    principals: Selectors
    tools: Patterns
    capabilities: Patterns
    condition: Condition | None

    @property
    def denies(self) -> bool:
        return self.rule.effect == "DENY"

    def concerns(self, spec: ToolSpec, needs: frozenset[str]) -> bool:
        """Return whether the rule is about the tool."""
        if self.tools.match(spec.name) is None:
            return False
        return not self.capabilities or any(self.capabilities.match(need) for need in needs)

    def applies_to(self, parties: Sequence[Party], default: Default) -> bool:
        """Return whether the rule applies to the call: one that is at least as strict as the default must name one of
        the parties, one that relaxes the default must name all of them."""
        if PRECEDENCE.index(Effect[self.rule.effect]) <= PRECEDENCE.index(default.effect):
            return self.principals.match_any(parties)
        return self.principals.match_all(party for party in parties if party.is_known)

    def is_vague_about(self, tool: str, default: Default) -> bool:
        """Return whether the rule is less strict than the default and covers the tool by a star only: then it does not
        relax the default."""
        if PRECEDENCE.index(Effect[self.rule.effect]) <= PRECEDENCE.index(default.effect):
            return False
        return not (self.tools.names(tool) or all(self.capabilities.names(need) for need in default.because_of))


class Default(NamedTuple):
    """What a policy requires for a tool that no rule is about."""

    effect: Effect
    because_of: frozenset[str]
    """The tool's capabilities that require it; empty for ALLOW."""


class Table:
    """Everything compiled from one document."""

    def __init__(self, document: PolicyDocument, revision: str, conditions: Conditions) -> None:
        """`document` is checked and complete; `conditions` are those of its rules, by rule id."""
        self.document = document
        self._revision = revision
        self.grants = tuple((Selectors(grant.principals), grant) for grant in document.grants)
        # By precedence first: the order of the document counts only among rules of one effect.
        self.rules = tuple(
            compile_rule(rule, conditions)
            for effect in PRECEDENCE
            for rule in document.rules
            if rule.effect == effect.value
        )
        self._roles = tuple((Selectors(entry.principals), frozenset(entry.roles)) for entry in document.roles)
        self._limits = tuple((Selectors(rule.principals), Patterns(rule.tools), rule) for rule in document.limits)
        self._egress = tuple(
            (Selectors(rule.principals), Patterns(rule.tools), egress_rule(rule, document.blocked_cidrs))
            for rule in document.egress
        )
        self._impersonate = Selectors(document.impersonate)
        self.tenants = Tenants(document.tenants) if document.tenants else None
        self.storage = StorageRules(document.storage)
        self._approved = Patterns(sorted(canonical_capabilities(document.approval_by_default)))
        self._commands = command_rules(document.commands)
        self._denied_commands = tuple(DeniedCommand(rule.id, rule.pattern) for rule in document.denied_commands)
        self._sandbox = sandbox(document.sandbox)

    def roles_of(self, parties: Sequence[Party]) -> frozenset[str]:
        """Return the roles that all parties have."""
        # A token used by an actor must not have more roles than the actor.
        return frozenset.intersection(*map(self._roles_of, parties))

    def _roles_of(self, party: Party) -> frozenset[str]:
        """Return the roles of the matching entries of `roles`; where none matches, `agent` for a party that a grant
        names, else none."""
        entries = [roles for who, roles in self._roles if who.match(party)]
        # Entries replace what a grant would imply, so an operator can take `agent` away.
        if entries:
            return frozenset().union(*entries)
        return frozenset({"agent"} if any(who.match(party) for who, _ in self.grants) else ())

    def represented_party(self, id: str, by: str) -> Party | None:
        """Return the party in whose name `by` makes a call; None when the policy mentions it nowhere but in a `*`."""
        party, alone = party_of_id(id, by), party_of_id(id)
        if any(who.single_out(alone) for who, _ in (*self.grants, *self._roles)):
            return party
        is_ruled = any(rule.principals.single_out(party) for rule in self.rules)
        return party._replace(is_known=False) if is_ruled else None

    def may_impersonate(self, parties: Sequence[Party]) -> bool:
        return self._impersonate.match_all(parties)

    def constraints(self, parties: Sequence[Party], tool: str) -> Constraints:
        # A rule must match all parties: otherwise a host that is open to one of them could be reached on behalf of
        # another.
        egress = tuple(rule for who, what, rule in self._egress if who.match_all(parties) and what.match(tool))
        return Constraints(egress, self._commands, self._denied_commands, self._sandbox)

    def limits(self, parties: Sequence[Party], tool: str) -> tuple[Limit, ...]:
        """Return the limits, each counted separately."""
        found = (
            _limit(limit, party.id, tool, "" if self.tenants is None else self.tenants.of(party.id))
            for party in parties
            for who, what, limit in self._limits
            if who.match(party) and what.match(tool)
        )
        # By id, so that a counter shared by two parties counts a call once.
        return tuple({limit.id: limit for limit in found}.values())

    def row(self, parties: Sequence[Party], spec: ToolSpec) -> Row:
        """Return a new row; the snapshot keeps it."""
        needs, all_named = canonical_capabilities(spec.capabilities), parties
        parties = [party for party in parties if party.is_known]
        mine = next((found for who, _ in self.grants if (found := who.match(parties[0]))), None)
        roles = [(party.id, self._roles_of(party)) for party in parties]
        lacks = [(party.id, self._holdings(party).lack(needs)) for party in parties]
        granted = Verdict(
            effect=Effect.ALLOW,
            policy_revision=self._revision,
            rule_id=f"grant:{mine.text}" if mine else "role:agent",
            reason="The caller's grants cover the tool.",
            constraints=self.constraints(parties, spec.name),
            limits=self.limits(parties, spec.name),
        )
        default = self.default(needs)
        concerned = [rule for rule in self.rules if rule.concerns(spec, needs)]
        rules = [rule for rule in concerned if rule.applies_to(all_named, default)]
        denies = bind_rules([rule for rule in rules if rule.denies], granted)
        if self.tenants is not None and not all(
            self.tenants.shows(self.tenants.of(party.id), spec.source) for party in parties
        ):
            # Replaces all other rules, whose ids and reasons would reveal that the tool exists.
            denies = (hide_tool(granted, spec.name),)
        others = [rule for rule in rules if not (rule.denies or rule.is_vague_about(spec.name, default))]
        return Row(
            needs=needs,
            missing=tuple(sorted({need for _, missing in lacks for need in missing})),
            lacking=tuple((id, missing) for id, missing in lacks if missing),
            not_agents=tuple((id, bool(roles)) for id, roles in roles if "agent" not in roles),
            denies=denies,
            others=bind_rules(others, granted),
            fallback=_by_default(granted, default),
            is_guarded=bool(spec.guarded),
            may_impersonate=self.may_impersonate(parties),
            constraints=granted.constraints,
        )

    def _holdings(self, party: Party) -> Holdings:
        grants = (grant for who, grant in self.grants if who.match(party))
        return Holdings(capability for grant in grants for capability in grant.capabilities)

    def default(self, needs: frozenset[str]) -> Default:
        """Return what a tool with these capabilities requires: an approval, a plan for a destructive one, or nothing.

        Annotations are hints for models (an overwrite destroys, too); capabilities are the hub's own.
        """
        if asking := frozenset(need for need in needs if self._approved.match(need) is not None):
            return Default(Effect.REQUIRE_APPROVAL, asking)
        if DANGER_DESTRUCTIVE in needs and self.document.destructive_requires_plan:
            return Default(Effect.REQUIRE_PLAN, frozenset({DANGER_DESTRUCTIVE}))
        return Default(Effect.ALLOW, frozenset())


def compile_conditions(document: PolicyDocument, lines: Lines) -> Conditions:
    """Return every condition by its rule's id. Raises InvalidPolicy for one that is not CEL over the known
    variables."""
    compiled: Conditions = {}
    for index, rule in enumerate(document.rules):
        if rule.when:
            try:
                compiled[rule.id] = Condition(rule.when)
            except ValueError as error:
                raise invalid(str(error), f"$.rules[{index}].when", lines) from None
    return compiled


def compile_rule(rule: Rule, conditions: Conditions) -> CompiledRule:
    return CompiledRule(
        rule=rule,
        principals=Selectors(rule.principals),
        tools=Patterns(rule.tools),
        capabilities=Patterns(sorted(canonical_capabilities(rule.capabilities))),
        condition=conditions.get(rule.id),
    )


def bind_rules(rules: list[CompiledRule], granted: Verdict) -> tuple[BoundRule, ...]:
    """Return the rules up to and including the first one without a condition: none after it can decide."""
    bound: list[BoundRule] = []
    for rule in rules:
        bound.append(BoundRule(rule.condition, _verdict(rule.rule, granted)))
        if rule.condition is None:
            break
    return tuple(bound)


def hide_tool(granted: Verdict, tool: str) -> BoundRule:
    """Return the deny for a principal that may not know of the tool. Step 1 already refuses such a call."""
    verdict = msgspec.structs.replace(
        granted,
        effect=Effect.DENY,
        rule_id=TENANTS_RULE_ID,
        reason=f"There is no tool named {tool!r}.",
        remedy="",
        kind=ErrorKind.TOOL_NOT_FOUND,
    )
    return BoundRule(None, verdict)


def _verdict(rule: Rule, granted: Verdict) -> Verdict:
    effect = Effect[rule.effect]
    details: dict[str, JsonValue] = {}
    if effect is Effect.REQUIRE_APPROVAL:
        details["approval"] = _terms(rule.approval)
    return msgspec.structs.replace(
        granted,
        effect=effect,
        rule_id=rule.id,
        reason=rule.reason or f"Rule {rule.id} says {rule.effect}.",
        remedy=rule.remedy or _REMEDIES.get(effect, ""),
        kind=_KINDS[effect],
        details=details,
    )


def _terms(approval: Approval) -> dict[str, JsonValue]:
    terms: dict[str, JsonValue] = {"approvers": list(approval.approvers)}
    if approval.expires_s is not None:
        terms["expires_s"] = approval.expires_s
    return terms


def _by_default(granted: Verdict, default: Default) -> Verdict:
    if default.effect is Effect.ALLOW:
        return granted
    if default.effect is Effect.REQUIRE_APPROVAL:
        return msgspec.structs.replace(
            granted,
            effect=Effect.REQUIRE_APPROVAL,
            rule_id=APPROVAL_RULE_ID,
            reason=f"A tool with {', '.join(sorted(default.because_of))} needs a person's approval.",
            remedy=APPROVAL_REMEDY,
            kind=ErrorKind.APPROVAL_REQUIRED,
            details={"approval": _terms(Approval())},
        )
    return msgspec.structs.replace(
        granted,
        effect=Effect.REQUIRE_PLAN,
        rule_id=PLAN_RULE_ID,
        reason="The tool is destructive and requires a dry run first.",
        remedy=PLAN_REMEDY,
        kind=ErrorKind.PLAN_REQUIRED,
    )


def _limit(limit: LimitRule, principal_id: str, tool: str, tenant: str) -> Limit:
    """Return the limit; `tenant` is empty where there are none."""
    parts = [limit.id]
    if limit.per == "tenant":  # `@` is quoted in the name of a principal
        parts.append(quote(principal_id) if tenant in ("", EVERY, UNASSIGNED) else f"@{quote(tenant)}")
    # Quoted, because `|` separates the parts: no name can equal another principal's counter.
    if limit.per in ("principal", "principal_tool"):
        parts.append(quote(principal_id))
    if limit.per in ("tool", "principal_tool"):
        parts.append(quote(tool))
    return Limit(
        id="|".join(parts),
        rate_per_s=limit.rate_per_s,
        burst=limit.burst,
        concurrency=limit.concurrency,
        quota=limit.quota,
        quota_window_s=limit.quota_window_s,
    )
