"""Conversion of a document's egress, commands and sandbox to the values that guards use."""

from __future__ import annotations

from collections.abc import Iterable

from toolhub_service.domain.verdict import CommandRule, EgressRule, FlagRule, Sandbox
from toolhub_service.guards.commands.safe import SAFE_COMMANDS
from toolhub_service.guards.hosts import canonical_host
from toolhub_service.guards.urls import canonical_path
from toolhub_service.policy.document import Command, Egress, SandboxRule


def canonical_pattern(host: str) -> str:
    """Return a host pattern in the form in which URLs are compared. Raises ToolFailure when it is invalid."""
    if host == "*":
        return host
    if host.startswith("*."):
        return "*." + canonical_host(host[2:]).name
    return canonical_host(f"[{host}]" if ":" in host and not host.startswith("[") else host).name


def egress_rule(rule: Egress, blocked_cidrs: tuple[str, ...] = ()) -> EgressRule:
    return EgressRule(
        hosts=tuple(canonical_pattern(host) for host in rule.hosts),
        schemes=frozenset(rule.schemes),
        ports=frozenset(rule.ports),
        paths=tuple(canonical_path(path) for path in rule.paths),
        methods=frozenset(rule.methods),
        cidrs=rule.cidrs,
        blocked_cidrs=blocked_cidrs,
        retry_with_key=rule.retry_with_key,
    )


def command_rules(commands: Iterable[Command]) -> tuple[CommandRule, ...]:
    """Return the rules in the order of the file; of two with one name the first applies, so an entry before the preset
    refines it."""
    rules: list[CommandRule] = []
    for command in commands:
        rules.extend(SAFE_COMMANDS if command.preset else (command_rule(command),))
    return tuple(rules)


def command_rule(command: Command) -> CommandRule:
    return CommandRule(
        name=command.name,
        path=command.path,
        flags=tuple(FlagRule(flag.flag, flag.value) for flag in command.flags),
        positionals=command.positionals,
        positionals_are_paths=command.positionals_are_paths,
        positionals_max=command.positionals_max,
        subcommands=command.subcommands,
        end_of_options=command.end_of_options,
        environment=command.environment,
    )


def sandbox(rule: SandboxRule) -> Sandbox:
    return Sandbox(**{name: getattr(rule, name) for name in rule.__struct_fields__})
