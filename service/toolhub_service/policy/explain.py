"""Why a call gets its verdict: every grant, rule and guard in order of evaluation, matched or not and why.

The verdict is the one that `decide` returns; the considerations come from the same compiled rules and guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.policy.arguments import RULE_IDS, argument_of, check_argument, statement_of, words
from toolhub_service.policy.conditions import ConditionFault
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.holdings import Holdings
from toolhub_service.policy.refusals import CAPABILITIES, IDENTITY, PERMISSIONS, acts_for_another
from toolhub_service.policy.selectors import Party, parties_of
from toolhub_service.policy.suggested_lines import grammar_line
from toolhub_service.policy.table import TENANTS_RULE_ID, CompiledRule, Row
from toolhub_service.policy.tenants import EVERY, UNASSIGNED


@dataclass(frozen=True, slots=True)
class Consideration:
    """One thing that was evaluated."""

    id: str
    """`identity`, `grants[2]`, `capabilities`, `permissions`, a rule's id, `guard:path`, the fallback's rule id."""
    what: str
    """What it says, as a short text."""
    matched: bool
    """Whether it applies to this call; for a guard, whether it refuses."""
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    verdict: Verdict
    considerations: tuple[Consideration, ...]
    grammar: str = ""
    """For operators only: a line of policy.yaml, to be completed, that would allow the refused command."""


def explain(snapshot: PolicySnapshot, planned: PlannedCall) -> Explanation:
    """Return the verdict on a call, and everything that was evaluated for it."""
    row, parties = snapshot.row_of(planned), parties_of(planned.call.principal, snapshot.others_of(planned))
    considered = [
        *_tenants(snapshot, planned, parties),
        _identity(planned, row),
        *_grants(snapshot, row, [party for party in parties if party.is_known]),
        _permissions(planned, row),
        *(_rule(rule, planned, row, parties, snapshot) for rule in snapshot.table.rules if rule.denies),
        *_guards(planned, row),
        *(_rule(rule, planned, row, parties, snapshot) for rule in snapshot.table.rules if not rule.denies),
        _fallback(row),
    ]
    return Explanation(snapshot.decide(planned), tuple(considered), _grammar(planned, row))


def _tenants(snapshot: PolicySnapshot, planned: PlannedCall, parties: Sequence[Party]) -> Iterator[Consideration]:
    """Yield the tenants of those whose rights the call needs, and whether they see the source."""
    tenants, source = snapshot.table.tenants, planned.spec.source
    if tenants is None:
        return
    listing = " and ".join(f"{TENANTS_RULE_ID}[{index}]" for index in tenants.listing(source))
    for party in parties:
        whom, tenant = "the caller" if party is parties[0] else party.id, tenants.of(party.id)
        found = tenants.entry_of(party.id)
        by = f"`{found[1]}` names {whom}" if found else f"no entry names {whom}"
        if tenant == EVERY:
            what, sees = f"{whom} is of the whole hub", "it sees every source"
        else:
            what = f"{whom} is of no tenant" if tenant == UNASSIGNED else f"{whom} is of tenant {tenant}"
            sees = f"source {source} is listed by {listing}" if listing else f"source {source} is everybody's"
        hidden = not tenants.shows(tenant, source)
        why = f"{by}; {sees}{', and so not there for it' if hidden else ''}"
        yield Consideration(f"{TENANTS_RULE_ID}[{found[0]}]" if found else TENANTS_RULE_ID, what, hidden, why)


def _identity(planned: PlannedCall, row: Row) -> Consideration:
    what, principal = "agent_id and user_id are the caller's own", planned.call.principal
    if not acts_for_another(planned.call.context, principal.id):
        return Consideration(IDENTITY, what, matched=False, why="the call names nobody else")
    if not (principal.may_impersonate or row.may_impersonate):
        return Consideration(
            IDENTITY, what, matched=True, why="the call names somebody else, and the caller may not act for others"
        )
    return Consideration(IDENTITY, what, matched=False, why="the caller may act for others")


def _grants(snapshot: PolicySnapshot, row: Row, parties: Sequence[Party]) -> Iterator[Consideration]:
    for party in parties:
        whom = "the caller" if party is parties[0] else party.id
        for index, (principals, grant) in enumerate(snapshot.table.grants):
            selector = principals.match(party)
            what = f"grants {', '.join(grant.capabilities) or 'no capability'} to {principals}"
            if selector is None:
                why = "names other principals" if party is parties[0] else f"does not name {whom}"
                yield Consideration(f"grants[{index}]", what, matched=False, why=why)
                continue
            covered = sorted(row.needs - set(Holdings(grant.capabilities).lack(row.needs)))
            why = f"`{selector.text}` names {whom}; covers {', '.join(covered) or 'none'}"
            yield Consideration(f"grants[{index}]", what, matched=True, why=why)
    what = f"the tool needs {', '.join(sorted(row.needs)) or 'no capability'}"
    if len(parties) > 1:
        what = f"{what} of each of {', '.join(party.id for party in parties)}"
    if row.not_agents:
        who = "the caller" if row.not_agents[0][0] == parties[0].id else row.not_agents[0][0]
        yield Consideration(CAPABILITIES, what, matched=True, why=f"{who} has neither a grant nor the role `agent`")
    elif len(parties) > 1 and row.lacking:
        why = "; ".join(f"{who} lacks {', '.join(missing)}" for who, missing in row.lacking)
        yield Consideration(CAPABILITIES, what, matched=True, why=why)
    else:
        why = f"missing: {', '.join(row.missing)}" if row.missing else "all held"
        yield Consideration(CAPABILITIES, what, matched=bool(row.missing), why=why)


def _permissions(planned: PlannedCall, row: Row) -> Consideration:
    permissions = planned.call.context.permissions
    what = "the call's own permissions limit the grant"
    if permissions is None:
        return Consideration(PERMISSIONS, what, matched=False, why="the call gives none")
    lacking = Holdings(permissions).lack(row.needs)
    why = f"they leave out {', '.join(lacking)}" if lacking else "they cover what the tool needs"
    return Consideration(PERMISSIONS, what, matched=bool(lacking), why=why)


def _rule(
    compiled: CompiledRule, planned: PlannedCall, row: Row, parties: Sequence[Party], snapshot: PolicySnapshot
) -> Consideration:
    rule, default = compiled.rule, snapshot.table.default(row.needs)
    what = f"{rule.effect} for {compiled.principals} on {compiled.tools}"
    if not compiled.applies_to(parties, default):
        some = len(parties) > 1 and compiled.principals.match_any(parties)
        why = "does not name all whose rights the call needs" if some else "names other principals"
        return Consideration(rule.id, what, matched=False, why=why)
    matched, why = _applies(compiled, planned, row)
    # The same test as in the table, repeated here because the table omits such rules silently.
    if matched and not compiled.denies and compiled.is_vague_about(planned.spec.name, default):
        lifted = "approval" if default.effect is Effect.REQUIRE_APPROVAL else "plan"
        named = " and ".join(sorted(default.because_of))
        why = f"an {rule.effect} by a wildcard does not replace the {lifted}: name the tool or {named}"
        matched = False
    return Consideration(rule.id, what, matched, why)


def _applies(compiled: CompiledRule, planned: PlannedCall, row: Row) -> tuple[bool, str]:
    if compiled.tools.match(planned.spec.name) is None:
        return False, "names other tools"
    if not compiled.concerns(planned.spec, row.needs):
        return False, "the tool has none of its capabilities"
    if compiled.condition is None:
        return True, "no condition"
    try:
        holds = compiled.condition.holds(planned)
    except ConditionFault as fault:
        return True, f"`{compiled.condition.text}` could not be evaluated, which counts as a deny: {fault}"
    return holds, f"`{compiled.condition.text}` is {'true' if holds else 'false'}"


def _guards(planned: PlannedCall, row: Row) -> Iterator[Consideration]:
    for argument in planned.spec.guarded:
        refusal = check_argument(planned, argument, row.constraints)
        what = f"checks `{argument.name}` as {argument.role.value}"
        if refusal is not None:
            why = refusal.error.message + _statement(planned, argument.role)
            yield Consideration(refusal.rule_id, what, matched=True, why=why)
        else:
            given = planned.args.get(argument.name) is not None
            why = f"passes{_statement(planned, argument.role)}" if given else "not checked: the argument is absent"
            yield Consideration(RULE_IDS[argument.role], what, matched=False, why=why)


def _statement(planned: PlannedCall, role: ArgumentRole) -> str:
    """Return how a statement was parsed; empty for other arguments."""
    statement = statement_of(planned) if role is ArgumentRole.SQL else None
    if statement is None:
        return ""
    return f" ({statement.kind}; tables: {', '.join(statement.tables) or 'none'})"


def _grammar(planned: PlannedCall, row: Row) -> str:
    value = argument_of(planned, ArgumentRole.COMMAND)
    if value is None:
        return ""
    argv = words(value)
    known = {rule.name for rule in row.constraints.commands}
    return "" if not argv or argv[0] in known else grammar_line(argv)


def _fallback(row: Row) -> Consideration:
    return Consideration(
        row.fallback.rule_id, f"else {row.fallback.effect.value}", matched=True, why=row.fallback.reason
    )
