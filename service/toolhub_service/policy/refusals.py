"""Refusals that no rule makes: identity, capabilities, guards; each with the lines of policy.yaml that change it."""

from __future__ import annotations

from collections.abc import Iterable

from toolhub_service.domain.call import ExecContext, PlannedCall
from toolhub_service.domain.capability import DANGER_DESTRUCTIVE
from toolhub_service.domain.constraints import Constraints
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.guards.commands import judge_command
from toolhub_service.guards.urls import judge_url, parse_url
from toolhub_service.policy import remedies
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

IDENTITY = "identity"
DEFAULT = "default"
CAPABILITIES = "capabilities"
PERMISSIONS = "permissions"


def acts_for_another(context: ExecContext, principal_id: str) -> bool:
    """Whether the message names an agent or a user who is not the verified caller."""
    return (context.agent_id not in ("", principal_id)) or (context.user_id not in ("", principal_id))


def impostor(planned: PlannedCall, revision: str) -> Verdict:
    principal_id = planned.call.principal.id
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=IDENTITY,
        reason="agent_id or user_id names someone else than the verified caller.",
        remedy="Leave agent_id and user_id out, or send the caller's own id.\n"
        + remedies.paste([remedies.impersonate_line(principal_id)]),
        kind=ErrorKind.PERMISSION_DENIED,
        details={"principal": principal_id},
    )


def unknown_principal(planned: PlannedCall, needs: frozenset[str], revision: str) -> Verdict:
    principal_id = planned.call.principal.id
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=DEFAULT,
        reason="No grant names this caller, and what is not granted is denied.",
        remedy=remedies.paste([remedies.grant_line(principal_id, needs)]),
        details={"principal": principal_id, "missing_capabilities": sorted(needs)},
    )


def no_agent(planned: PlannedCall, revision: str) -> Verdict:
    """Roles are given to the principal, and `agent` is not among them."""
    principal_id = planned.call.principal.id
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=DEFAULT,
        reason="The caller lacks the role `agent`, without which nobody calls tools.",
        remedy=remedies.paste([remedies.agent_line(principal_id)]),
        details={"principal": principal_id},
    )


def lacks_capabilities(
    planned: PlannedCall, missing: tuple[str, ...], constraints: Constraints, revision: str
) -> Verdict:
    """No grant gives the principal what the tool needs."""
    principal_id = planned.call.principal.id
    lines = [remedies.grant_line(principal_id, missing), *_argument_lines(planned, constraints)]
    if DANGER_DESTRUCTIVE in missing:
        lines.append(remedies.allow_line(principal_id, planned.spec.name))
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=CAPABILITIES,
        reason=f"The caller lacks {', '.join(missing)}, which {planned.spec.name} needs.",
        remedy=remedies.paste(lines),
        details={"missing_capabilities": list(missing)},
    )


def narrowed_too_far(missing: Iterable[str], revision: str) -> Verdict:
    """The context's own permissions leave out what the tool needs."""
    names = sorted(missing)
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=PERMISSIONS,
        reason=f"The call's own context.permissions leave out {', '.join(names)}.",
        remedy=f"Add {', '.join(names)} to context.permissions, or leave permissions out to use the whole grant.",
        details={"missing_capabilities": list(names)},
    )


def guarded(planned: PlannedCall, refusal: GuardRefusal, constraints: Constraints, revision: str) -> Verdict:
    """A guard refused an argument: its own kind, message and details."""
    lines: list[str] = []
    if refusal.rule_id in (EGRESS_GUARD, COMMAND_GUARD):
        lines = _argument_lines(planned, constraints)
    elif refusal.rule_id == OVERWRITE_GUARD:
        lines = [remedies.overwrite_line()]
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=refusal.rule_id,
        reason=refusal.error.message,
        remedy=remedies.paste(lines),
        kind=refusal.error.kind,
        details={**refusal.error.details, "argument": refusal.argument},
    )


def _argument_lines(planned: PlannedCall, constraints: Constraints) -> list[str]:
    """What egress and commands would have to say for these arguments; empty where it cannot be said."""
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
            judge_url(url, method, constraints.egress)
        except ToolFailure:
            names_path = any(rule.paths for rule in constraints.egress)
            lines[remedies.egress_line(parse_url(url), method, names_path=names_path)] = None
    return [line for line in lines if line]


def _command_lines(planned: PlannedCall, constraints: Constraints) -> list[str]:
    value = argument_of(planned, ArgumentRole.COMMAND)
    if value is None:
        return []
    argv = words(value)
    try:
        judge_command(argv, constraints.commands)
    except ToolFailure as failure:
        if failure.error.kind is ErrorKind.POLICY_DENIED and argv[0] not in {
            rule.name for rule in constraints.commands
        }:
            return [line] if (line := remedies.command_line(argv)) else []
    return []
