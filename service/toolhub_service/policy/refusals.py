"""Refusals that no rule makes: identity, capabilities, guards; each with the lines of policy.yaml that change it."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from toolhub_service.domain.call import ExecContext, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, ArgumentRole, GuardedArgument
from toolhub_service.domain.verdict import Constraints, Effect, Verdict
from toolhub_service.guards.addresses import is_public
from toolhub_service.guards.command_grammar import SAFE_COMMANDS
from toolhub_service.guards.commands import argv_of, judge_command
from toolhub_service.guards.dangerous_commands import danger_of, runs_others
from toolhub_service.guards.paths import judge_path
from toolhub_service.guards.urls import DEFAULT_PORTS, ParsedUrl, judge_url, parse_url

# Arguments before the tool runs: the guards of step 4, the very functions with which tools enforce at I/O time.
#
# A tool declares what its arguments mean (`ToolSpec.guarded`); absent and null values are not judged, arrays by item.

PATH_GUARD = "guard:path"
EGRESS_GUARD = "guard:egress"
COMMAND_GUARD = "guard:command"
OVERWRITE_GUARD = "guard:overwrite"

RULE_IDS = {
    ArgumentRole.PATH_READ: PATH_GUARD,
    ArgumentRole.PATH_WRITE: PATH_GUARD,
    ArgumentRole.WORKING_DIRECTORY: PATH_GUARD,
    ArgumentRole.URL: EGRESS_GUARD,
    ArgumentRole.METHOD: EGRESS_GUARD,
    ArgumentRole.COMMAND: COMMAND_GUARD,
}


@dataclass(frozen=True, slots=True)
class GuardRefusal:
    """Which guard refused which argument, and what it says."""

    rule_id: str
    argument: str
    error: ToolError


def judge_arguments(planned: PlannedCall, constraints: Constraints) -> GuardRefusal | None:
    """The first refusal in the tool's order of arguments, or None when every guard agrees."""
    for argument in planned.spec.guarded:
        refusal = judge_argument(planned, argument, constraints)
        if refusal is not None:
            return refusal
    return None


def judge_argument(planned: PlannedCall, argument: GuardedArgument, constraints: Constraints) -> GuardRefusal | None:
    """What the guard of one argument says; None when it agrees or there is nothing to judge."""
    value = planned.args.get(argument.name)
    if value is None:
        return None
    role = argument.role
    if (
        role is ArgumentRole.PATH_WRITE
        and not constraints.sandbox.may_overwrite
        and planned.args.get("overwrite") is True
    ):
        return GuardRefusal(OVERWRITE_GUARD, "overwrite", _overwrite_refused().error)
    try:
        _judge(planned, role, value, constraints)
    except ToolFailure as failure:
        return GuardRefusal(RULE_IDS[role], argument.name, failure.error)
    return None


def method_of(planned: PlannedCall) -> str:
    """The HTTP method that the call asks for; GET where the tool has no such argument."""
    return str(argument_of(planned, ArgumentRole.METHOD) or "GET").upper()


def argument_of(planned: PlannedCall, role: ArgumentRole) -> JsonValue:
    """The value of the first argument that has the role and is given; None when there is none."""
    for argument in planned.spec.guarded:
        if argument.role is role and (value := planned.args.get(argument.name)) is not None:
            return value
    return None


def texts(value: JsonValue) -> list[str]:
    """One string or an array of strings, as a list. Raises ToolFailure INVALID_INPUT."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    raise refuse(ErrorKind.INVALID_INPUT, "Give a string, or an array of strings where the tool takes several.")


def words(command: JsonValue) -> list[str]:
    """The argument of role COMMAND as argv. Raises ToolFailure INVALID_INPUT."""
    return argv_of(command) if isinstance(command, str) else texts(command)


def _judge(planned: PlannedCall, role: ArgumentRole, value: JsonValue, constraints: Constraints) -> None:
    if role is ArgumentRole.URL:
        method = method_of(planned)
        for url in texts(value):
            judge_url(url, method, constraints.egress)
    elif role is ArgumentRole.COMMAND:
        _judge_command(planned, value, constraints)
    elif role is not ArgumentRole.METHOD:  # an egress rule names the method, so it is judged with the URL
        for path in texts(value):
            judge_path(path)


def _judge_command(planned: PlannedCall, value: JsonValue, constraints: Constraints) -> None:
    judged = judge_command(words(value), constraints.commands)
    folder = argument_of(planned, ArgumentRole.WORKING_DIRECTORY)
    for path in judged.paths:
        # join keeps an absolute path absolute, and the guard refuses it
        judge_path(posixpath.join(folder, path) if isinstance(folder, str) else path)


def _overwrite_refused() -> ToolFailure:
    return refuse(
        ErrorKind.POLICY_DENIED,
        "Overwriting is not allowed here: leave out `overwrite` and write to a new path.",
        argument="overwrite",
    )


# What would make a refused call pass, as lines that can be pasted into policy.yaml.
#
# Each line is YAML flow style whose strings are JSON strings, which YAML reads alike.

_OPENABLE = tuple(map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128")))


def paste(lines: Sequence[str]) -> str:
    """The remedy that shows an operator the lines to add."""
    if not lines:
        return ""
    return "An operator can allow this in policy.yaml (append to a key that is already there):\n" + "\n".join(lines)


def grant_line(principal_id: str, capabilities: Iterable[str]) -> str:
    return f"grants: [{{principals: {_flow([principal_id])}, capabilities: {_flow(sorted(capabilities))}}}]"


def agent_line(principal_id: str) -> str:
    """Roles add up, so that those the principal has stay."""
    return f"roles: [{{principals: {_flow([principal_id])}, roles: [agent]}}]"


def allow_line(principal_id: str, tool: str) -> str:
    """Lets a destructive tool run without a plan."""
    id = "allow-" + re.sub(r"[^A-Za-z0-9]+", "-", tool)[:50].strip("-")
    rule = f"id: {id}, effect: ALLOW, principals: {_flow([principal_id])}, tools: {_flow([tool])}"
    return f"rules: [{{{rule}}}]  # without this rule: a dry run first"


def impersonate_line(principal_id: str) -> str:
    return f"impersonate: {_flow([principal_id])}"


def overwrite_line() -> str:
    return "sandbox: {may_overwrite: true}"


def egress_line(url: ParsedUrl, method: str, *, names_path: bool = False) -> str:
    """Opens the URL's host for the method, and its address where that is not public; with `names_path` its path alone.

    Empty for other special addresses, such as metadata services: nobody should paste those in.
    """
    fields = [f"hosts: {_flow([url.host])}"]
    if url.port != DEFAULT_PORTS[url.scheme]:
        fields.append(f"ports: [{url.port}]")
    if names_path:
        fields.append(f"paths: {_flow([url.target.partition('?')[0]])}")
    if method not in ("GET", "HEAD"):
        fields.append(f"methods: {_flow([method])}")
    if url.is_address and not is_public(url.host):
        address = ip_address(url.host)
        if not any(address in network for network in _OPENABLE):
            return ""
        fields.append(f"cidrs: {_flow([str(ip_network(address))])}")
    return f"egress: [{{{', '.join(fields)}}}]"


def command_line(argv: Sequence[str]) -> str:
    """Lets a command of the built-in list run; empty for any other, which only an operator can decide how to allow."""
    try:
        judge_command(argv, SAFE_COMMANDS)
    except ToolFailure:
        return ""
    return "commands: [{preset: safe}]"


def grammar_line(argv: Sequence[str]) -> str:
    """A grammar for an operator to complete; empty for what the built-in list names, for a program that runs any other,
    and for a command that no rule can allow."""
    name = argv[0].rsplit("/", 1)[-1]
    if not name or any(rule.name == name for rule in SAFE_COMMANDS) or runs_others(name) or danger_of(argv):
        return ""
    flags = ", ".join(
        f"{{flag: {_flow(word)}}}" for word in dict.fromkeys(argv[1:]) if word.startswith("-") and word != "--"
    )
    grammar = f"flags: [{flags}], positionals: {_flow('[A-Za-z0-9._/-]+')}, positionals_are_paths: true"
    return f"commands: [{{name: {_flow(name)}, path: {_flow('/usr/bin/' + name)}, {grammar}}}]"


def _flow(value: str | Sequence[str]) -> str:
    return json.dumps(value)


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
        + paste([impersonate_line(principal_id)]),
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
        remedy=paste([grant_line(principal_id, needs)]),
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
        remedy=paste([agent_line(principal_id)]),
        details={"principal": principal_id},
    )


def lacks_capabilities(
    planned: PlannedCall, missing: tuple[str, ...], constraints: Constraints, revision: str
) -> Verdict:
    """No grant gives the principal what the tool needs."""
    principal_id = planned.call.principal.id
    lines = [grant_line(principal_id, missing), *_argument_lines(planned, constraints)]
    if DANGER_DESTRUCTIVE in missing:
        lines.append(allow_line(principal_id, planned.spec.name))
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=CAPABILITIES,
        reason=f"The caller lacks {', '.join(missing)}, which {planned.spec.name} needs.",
        remedy=paste(lines),
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
        lines = [overwrite_line()]
    return Verdict(
        effect=Effect.DENY,
        policy_revision=revision,
        rule_id=refusal.rule_id,
        reason=refusal.error.message,
        remedy=paste(lines),
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
            lines[egress_line(parse_url(url), method, names_path=names_path)] = None
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
            return [line] if (line := command_line(argv)) else []
    return []
