"""What would make a refused call pass, as lines that can be pasted into policy.yaml.

Each line is YAML flow style whose strings are JSON strings, which YAML reads alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.addresses import is_public
from toolhub_service.guards.commands import judge_command
from toolhub_service.guards.dangerous_commands import danger_of, runs_others
from toolhub_service.guards.safe_commands import SAFE_COMMANDS
from toolhub_service.guards.urls import DEFAULT_PORTS, ParsedUrl

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
    """Lets a command of the built-in list run; empty for any other, which only an operator is told how to allow."""
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
