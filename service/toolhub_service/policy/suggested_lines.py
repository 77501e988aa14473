"""Lines of policy.yaml that would allow a refused call, for an operator to paste.

Each line is YAML flow style whose strings are JSON strings, which YAML reads alike.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.addresses import is_public
from toolhub_service.guards.commands.check import check_command
from toolhub_service.guards.commands.dangerous import danger_of, runs_others
from toolhub_service.guards.commands.safe import SAFE_COMMANDS
from toolhub_service.guards.urls import DEFAULT_PORTS, ParsedUrl

_OPENABLE = tuple(map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128")))


def paste(lines: Sequence[str], commands: Sequence[str] = ()) -> str:
    """Return the remedy that shows an operator the commands that change the file, or the lines to add."""
    if not lines:
        return ""
    typed = f"with {' and '.join(f'`{command}`' for command in commands)} on the hub's machine, or " if commands else ""
    return f"An operator can allow this {typed}in policy.yaml (append to a key that is already there):\n" + "\n".join(
        lines
    )


def ask_operator(rule_id: str) -> str:
    """Return the remedy for everybody else, who must not learn from a refusal how to circumvent it."""
    return f"Ask an operator to allow it, and name rule_id {rule_id}."


def grant_line(principal_id: str, capabilities: Iterable[str]) -> str:
    return f"grants: [{{principals: {flow_style([principal_id])}, capabilities: {flow_style(sorted(capabilities))}}}]"


def grant_command(principal_id: str, capabilities: Iterable[str]) -> str:
    """Return the command line, for the hub's machine, that adds what `grant_line` shows."""
    return shlex.join(["toolhub", "policy", "grant", principal_id, *sorted(capabilities)])


def allow_line(principal_id: str, tool: str) -> str:
    """Return a line that lets a destructive tool run without a plan."""
    # Bounded and limited to the characters of an id, because pasting any other line would make the policy invalid.
    id = "allow-" + re.sub(r"[^A-Za-z0-9]+", "-", tool)[:50].strip("-")
    rule = f"id: {id}, effect: ALLOW, principals: {flow_style([principal_id])}, tools: {flow_style([tool])}"
    return f"rules: [{{{rule}}}]  # without this rule: a dry run first"


def egress_line(url: ParsedUrl, method: str, *, names_path: bool = False) -> str:
    """Return a line that allows the URL's host for the method, and its address where that is not public; with
    `names_path` only its path.

    Empty for other special addresses, such as metadata services: nobody should paste those.
    """
    fields = [f"hosts: {flow_style([url.host])}"]
    if url.port != DEFAULT_PORTS[url.scheme]:
        fields.append(f"ports: [{url.port}]")
    if names_path:
        fields.append(f"paths: {flow_style([url.target.partition('?')[0]])}")
    if method not in ("GET", "HEAD"):
        fields.append(f"methods: {flow_style([method])}")
    if url.is_address and not is_public(url.host):
        address = ip_address(url.host)
        # 169.254.169.254 and similar addresses return a cloud's credentials to any client.
        if not any(address in network for network in _OPENABLE):
            return ""
        fields.append(f"cidrs: {flow_style([str(ip_network(address))])}")
    return f"egress: [{{{', '.join(fields)}}}]"


def command_line(argv: Sequence[str]) -> str:
    """Return a line that allows a command of the built-in list; empty for any other, which only an operator can decide
    how to allow."""
    try:
        check_command(argv, SAFE_COMMANDS)
    except ToolFailure:
        return ""
    return "commands: [{preset: safe}]"


def grammar_line(argv: Sequence[str]) -> str:
    """Return a grammar for an operator to complete; empty for a command of the built-in list, for a program that runs
    others, and for a command that no rule can allow."""
    name = argv[0].rsplit("/", 1)[-1]
    if not name or any(rule.name == name for rule in SAFE_COMMANDS) or runs_others(name) or danger_of(argv):
        return ""
    flags = ", ".join(
        f"{{flag: {flow_style(word)}}}" for word in dict.fromkeys(argv[1:]) if word.startswith("-") and word != "--"
    )
    grammar = f"flags: [{flags}], positionals: {flow_style('[A-Za-z0-9._/-]+')}, positionals_are_paths: true"
    return f"commands: [{{name: {flow_style(name)}, path: {flow_style('/usr/bin/' + name)}, {grammar}}}]"


def flow_style(value: str | Sequence[str]) -> str:
    return json.dumps(value)
