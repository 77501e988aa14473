"""Refusals that do not come from a rule: identity, capabilities, guards; each with the lines of policy.yaml that change
it (suggested_lines.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from toolhub_service.domain.call import ExecContext, PlannedCall, Role
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, ArgumentRole
from toolhub_service.domain.verdict import Constraints, Effect, Verdict
from toolhub_service.guards.commands.check import check_command
from toolhub_service.guards.urls import check_url, parse_url
from toolhub_service.policy.arguments import (
    COMMAND_GUARD,
    EGRESS_GUARD,
    OVERWRITE_GUARD,
    GuardRefusal,
    argument_of,
    method_of,
    texts,
    words,
)
from toolhub_service.policy.suggested_lines import (
    allow_line,
    ask_operator,
    command_line,
    egress_line,
    flow_style,
    grant_command,
    grant_line,
    paste,
)

IDENTITY = "identity"
DEFAULT = "default"
CAPABILITIES = "capabilities"
PERMISSIONS = "permissions"
INNER_CALLS = "inner_calls"
_NAMED_MAX: Final = 16


def acts_for_another(context: ExecContext, principal_id: str) -> bool:
    """Return whether the message names an agent or a user other than the verified caller."""
    return (context.agent_id not in ("", principal_id)) or (context.user_id not in ("", principal_id))


def _deny(
    planned: PlannedCall,
    revision: str,
    rule_id: str,
    reason: str,
    *,
    remedy: str = "",
    lines: Sequence[str] = (),
    commands: Sequence[str] = (),
    kind: ErrorKind = ErrorKind.POLICY_DENIED,
    details: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Verdict:
    """`remedy` is what the caller can do; `lines` of policy.yaml, and the `commands` that add them, are shown to
    callers who are operators."""
    allowing = paste(lines, commands)
    shown = allowing
    is_operator = Role.OPERATOR in planned.call.principal.roles and planned.call.lineage is None
    if allowing and not is_operator:  # an operator's sub-agent is a model like any other
        shown = ask_operator(rule_id)
    full_remedy = "\n".join(filter(None, (remedy, shown)))
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=rule_id,
        reason=reason,
        remedy=full_remedy,
        operator_remedy=allowing,
        kind=kind,
        details=details,
    )


def refuse_impersonation(planned: PlannedCall, revision: str) -> Verdict:
    """The message names another principal, and the caller may not act for others."""
    principal_id = planned.call.principal.id
    return _deny(
        planned,
        revision,
        IDENTITY,
        "agent_id or user_id differs from the authenticated caller.",
        remedy="Leave agent_id and user_id empty, or send the caller's own id.",
        lines=[f"impersonate: {flow_style([principal_id])}"],
        kind=ErrorKind.PERMISSION_DENIED,
        details={"principal": principal_id},
    )


def refuse_unknown_principal(planned: PlannedCall, who: str, needs: frozenset[str], revision: str) -> Verdict:
    """No grant and no role names `who`, whose rights the call needs."""
    return _deny(
        planned,
        revision,
        DEFAULT,
        f"No grant names {describe_party(planned, who, 'this caller')}, and everything that is not granted is denied.",
        lines=[grant_line(who, needs)],
        commands=[grant_command(who, needs)] if needs else (),
        details={"principal": who, "missing_capabilities": sorted(needs)},
    )


def refuse_non_agent(planned: PlannedCall, who: str, revision: str) -> Verdict:
    """`who` has roles, but `agent` is not among them."""
    return _deny(
        planned,
        revision,
        DEFAULT,
        f"{describe_party(planned, who)} lacks the role `agent`, which calling tools requires.",
        # Roles add up, so the principal keeps those that it has.
        lines=[f"roles: [{{principals: {flow_style([who])}, roles: [agent]}}]"],
        details={"principal": who},
    )


def refuse_missing_capabilities(
    planned: PlannedCall,
    missing: tuple[str, ...],
    lacking: Sequence[tuple[str, tuple[str, ...]]],
    constraints: Constraints,
    revision: str,
) -> Verdict:
    """No grant gives the tool's capabilities to all whose rights the call needs; the argument lists by id what each
    lacks."""
    lines = [grant_line(who, lacks) for who, lacks in lacking]
    of_arguments = _argument_lines(planned, constraints)
    # The commands would not be enough where the arguments need lines, too.
    commands = () if of_arguments else [grant_command(who, lacks) for who, lacks in lacking]
    lines += of_arguments
    lines += [allow_line(who, planned.spec.name) for who, lacks in lacking if DANGER_DESTRUCTIVE in lacks]
    who, lacks = lacking[0]
    reason = f"{describe_party(planned, who)} lacks {', '.join(lacks)}, which {planned.spec.name} needs."
    details: dict[str, JsonValue] = {"missing_capabilities": list(missing)}
    return _deny(planned, revision, CAPABILITIES, reason, lines=lines, commands=commands, details=details)


def describe_party(planned: PlannedCall, who: str, caller: str = "The caller") -> str:
    """Return the tool's name as it appears in a sentence to the caller."""
    if who == planned.call.principal.id:
        return caller
    acts = who in planned.call.principal.actors
    return f"{who}, {'who acts for the caller' if acts else 'for whom the caller acts'},"


def refuse_narrowed_context(planned: PlannedCall, missing: tuple[str, ...], revision: str) -> Verdict:
    """The context's own permissions do not include what the tool needs."""
    names = ", ".join(missing)
    return _deny(
        planned,
        revision,
        PERMISSIONS,
        f"The call's own context.permissions do not include {names}.",
        remedy=f"Add {names} to context.permissions, or leave permissions empty to use the whole grant.",
        details={"missing_capabilities": list(missing)},
    )


def refuse_narrowed_credential(planned: PlannedCall, missing: tuple[str, ...], revision: str) -> Verdict:
    """The caller's credential is narrowed and does not include what the tool needs: nothing in the call can change
    that."""
    principal = planned.call.principal
    assert principal.permissions is not None
    names = ", ".join(missing)
    most = [*sorted(principal.permissions)[:_NAMED_MAX], *(["…"] if len(principal.permissions) > _NAMED_MAX else [])]
    what = "token" if principal.issuer else "API key"
    remedy = (
        f"Use a token with a scope or group to which `capabilities` of the issuer {principal.issuer} gives {names}."
        if principal.issuer
        else f"Use another key of {principal.id}: an operator makes one with `toolhub keys create` and "
        f"`--capabilities` that include {names}, or without any for the whole grant."
    )
    return _deny(
        planned,
        revision,
        PERMISSIONS,
        f"The {what} is narrowed to {', '.join(most) or 'nothing'}, and {planned.spec.name} needs {names}.",
        remedy=remedy,
        details={"missing_capabilities": list(missing)},
    )


def refuse_unlent_tool(planned: PlannedCall, revision: str) -> Verdict:
    """The running call that makes this one may use other tools only."""
    return _deny(
        planned,
        revision,
        INNER_CALLS,
        f"{planned.spec.name} is not among the tools that the call which makes this one was given.",
        remedy="Use one of the tools that were given.",
    )


def refuse_by_guard(planned: PlannedCall, refusal: GuardRefusal, constraints: Constraints, revision: str) -> Verdict:
    """A guard refused an argument; the refusal has the guard's kind, message and details."""
    lines: list[str] = []
    if refusal.rule_id in (EGRESS_GUARD, COMMAND_GUARD):
        lines = _argument_lines(planned, constraints)
    elif refusal.rule_id == OVERWRITE_GUARD:
        lines = ["sandbox: {may_overwrite: true}"]
    error = refusal.error
    details = {**error.details, "argument": refusal.argument}
    return _deny(planned, revision, refusal.rule_id, error.message, lines=lines, kind=error.kind, details=details)


def _argument_lines(planned: PlannedCall, constraints: Constraints) -> list[str]:
    """Return lines that egress and commands would need for these arguments; empty where they are not known."""
    try:
        return [*_egress_lines(planned, constraints), *_command_lines(planned, constraints)]
    except ToolFailure:
        return []


def _egress_lines(planned: PlannedCall, constraints: Constraints) -> list[str]:
    value = argument_of(planned, ArgumentRole.URL)
    method = method_of(planned)
    lines: dict[str, None] = {}
    for url in texts(value) if value is not None else ():
        try:
            check_url(url, method, constraints.egress)
        except ToolFailure:
            names_path = any(rule.paths for rule in constraints.egress)
            lines[egress_line(parse_url(url), method, names_path=names_path)] = None
    return [line for line in lines if line]


def _command_lines(planned: PlannedCall, constraints: Constraints) -> list[str]:
    value = argument_of(planned, ArgumentRole.COMMAND)
    if value is None:
        return []
    argv = words(value)
    try:
        check_command(argv, constraints.commands, constraints.denied_commands)
    except ToolFailure as failure:
        if failure.error.kind is ErrorKind.POLICY_DENIED and argv[0] not in {
            rule.name for rule in constraints.commands
        }:
            return [line] if (line := command_line(argv)) else []
    return []
