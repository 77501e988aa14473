"""What a well-typed policy document can still get wrong: doubled ids, stars that grant nothing, impossible hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from toolhub_service.domain.capability import DANGER_DESTRUCTIVE
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.commands import rule_faults
from toolhub_service.guards.urls import canonical_path
from toolhub_service.policy.constraining import canonical_pattern, command_rule
from toolhub_service.policy.document import Command, Egress, PolicyDocument
from toolhub_service.policy.patterns import Pattern

Problem = tuple[str, str]
"""Path and sentence."""


def unsound(document: PolicyDocument) -> Iterator[Problem]:
    """Every problem, in the order of the file."""
    yield from _useless_stars(document)
    yield from _doubled("rules", [rule.id for rule in document.rules])
    yield from _doubled("limits", [limit.id for limit in document.limits])
    for index, limit in enumerate(document.limits):
        if limit.rate_per_s is None and limit.concurrency is None and limit.quota is None:
            yield f"$.limits[{index}]", "bounds nothing: give rate_per_s, concurrency or quota"
    for index, rule in enumerate(document.egress):
        yield from _egress(f"$.egress[{index}]", rule)
    for index, command in enumerate(document.commands):
        yield from _command(f"$.commands[{index}]", command)
    yield from _doubled("commands", [command.name or "preset" for command in document.commands])


def _useless_stars(document: PolicyDocument) -> Iterator[Problem]:
    for index, grant in enumerate(document.grants):
        for place, text in enumerate(grant.capabilities):
            if "*" in text and text.startswith("d") and Pattern(text).matches(DANGER_DESTRUCTIVE):
                path = f"$.grants[{index}].capabilities[{place}]"
                yield path, f"no star covers {DANGER_DESTRUCTIVE}: write it out"


def _doubled(section: str, ids: Iterable[str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, id in enumerate(ids):
        if id in seen:
            yield f"$.{section}[{index}]", f"`{id}` is there already; each needs a name of its own"
        seen.add(id)


def _egress(path: str, rule: Egress) -> Iterator[Problem]:
    for index, host in enumerate(rule.hosts):
        try:
            canonical_pattern(host)
        except ToolFailure:
            yield (
                f"{path}.hosts[{index}]",
                f"`{host}` is no host: a name, `*.name`, a literal address or `*`, without scheme, port or path",
            )
    for index, prefix in enumerate(rule.paths):
        try:
            canonical_path(prefix)
        except ToolFailure:
            yield f"{path}.paths[{index}]", f"`{prefix}` is no path prefix such as /v1/items, without dot segments"
    for index, cidr in enumerate(rule.cidrs):
        try:
            ipaddress.ip_network(cidr)
        except ValueError:
            yield f"{path}.cidrs[{index}]", f"`{cidr}` is no network such as 10.0.0.0/8 (host bits must be zero)"


def _command(path: str, command: Command) -> Iterator[Problem]:
    if command.preset is None:
        yield from ((path, fault) for fault in rule_faults(command_rule(command)))
    elif command != Command(preset=command.preset):
        yield path, "`preset` stands alone: put further commands in entries of their own"
