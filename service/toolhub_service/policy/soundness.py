"""Semantic errors of a well-typed policy document: duplicate ids, stars that grant nothing, impossible hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE
from toolhub_service.guards.commands.check import rule_faults
from toolhub_service.guards.commands.grammar import compiles
from toolhub_service.guards.urls import canonical_path
from toolhub_service.policy.document import Command, Egress, PolicyDocument
from toolhub_service.policy.guard_values import canonical_pattern, command_rule
from toolhub_service.policy.patterns import Pattern
from toolhub_service.policy.selectors import find_misspelt_selectors
from toolhub_service.policy.tenants import find_tenant_errors

Problem = tuple[str, str]
"""Path and sentence."""


def find_semantic_errors(document: PolicyDocument) -> Iterator[Problem]:
    """Yield every problem, in the order of the file."""
    yield from find_misspelt_selectors(document)
    yield from find_useless_wildcards(document)
    yield from find_tenant_errors(document.tenants)
    yield from find_duplicate_ids("rules", [rule.id for rule in document.rules])
    yield from find_duplicate_ids("limits", [limit.id for limit in document.limits])
    for index, limit in enumerate(document.limits):
        if limit.rate_per_s is None and limit.concurrency is None and limit.quota is None:
            yield f"$.limits[{index}]", "sets no limit: give rate_per_s, concurrency or quota"
    for index, entry in enumerate(document.storage):
        bounds = entry.workspace_bytes, entry.artifact_bytes, entry.memory_bytes, entry.soft_ratio
        if all(bound is None for bound in bounds):
            yield (
                f"$.storage[{index}]",
                "sets nothing: give workspace_bytes, artifact_bytes, memory_bytes or soft_ratio",
            )
    for index, rule in enumerate(document.egress):
        yield from find_egress_errors(f"$.egress[{index}]", rule)
    yield from find_network_errors("$.blocked_cidrs", document.blocked_cidrs)
    for index, command in enumerate(document.commands):
        yield from find_command_errors(f"$.commands[{index}]", command)
    yield from find_duplicate_ids("commands", [command.name or "preset" for command in document.commands])
    yield from find_duplicate_ids("denied_commands", [rule.id for rule in document.denied_commands])
    for index, denied in enumerate(document.denied_commands):
        if not compiles(denied.pattern):
            yield f"$.denied_commands[{index}].pattern", f"`{denied.pattern}` is not an RE2 pattern"


def find_useless_wildcards(document: PolicyDocument) -> Iterator[Problem]:
    for index, grant in enumerate(document.grants):
        for place, text in enumerate(grant.capabilities):
            if "*" in text and text.startswith("d") and Pattern(text).matches(DANGER_DESTRUCTIVE):
                path = f"$.grants[{index}].capabilities[{place}]"
                yield path, f"a wildcard never covers {DANGER_DESTRUCTIVE}: name it"


def find_duplicate_ids(section: str, ids: Iterable[str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, id in enumerate(ids):
        if id in seen:
            yield f"$.{section}[{index}]", f"`{id}` is used twice; each id must be unique"
        seen.add(id)


def find_egress_errors(path: str, rule: Egress) -> Iterator[Problem]:
    for index, host in enumerate(rule.hosts):
        try:
            canonical_pattern(host)
        except ToolFailure:
            yield (
                f"{path}.hosts[{index}]",
                (
                    f"`{host}` is not a host: give a name, `*.name`, a literal address or `*`, without scheme, port or "
                    "path"
                ),
            )
    for index, prefix in enumerate(rule.paths):
        try:
            canonical_path(prefix)
        except ToolFailure:
            yield (
                f"{path}.paths[{index}]",
                (f"`{prefix}` is not a path prefix: give one such as /v1/items, without dot segments"),
            )
    yield from find_network_errors(f"{path}.cidrs", rule.cidrs)


def find_network_errors(path: str, cidrs: Iterable[str]) -> Iterator[Problem]:
    for index, cidr in enumerate(cidrs):
        try:
            ipaddress.ip_network(cidr)
        except ValueError:
            yield (
                f"{path}[{index}]",
                f"`{cidr}` is not a network: give one such as 10.0.0.0/8 (host bits must be zero)",
            )


def find_command_errors(path: str, command: Command) -> Iterator[Problem]:
    if command.preset is None:
        yield from ((path, fault) for fault in rule_faults(command_rule(command)))
    elif command != Command(preset=command.preset):
        yield path, "`preset` cannot be combined with other keys: put further commands in entries of their own"
