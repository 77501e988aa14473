"""Translates OpenClaw's lists of what each agent may use, must not use or asks for into a policy.

Agents become principals. Tools go by the hub's names, by those of a face, or by OpenClaw's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import LOCAL_TOOLS
from toolhub_service.faces.permissions import Imported, ImportRefused, cel_text, escape_pattern, rule_id
from toolhub_service.policy.patterns import Pattern

STRATEGIES: Final = ("allow", "deny", "require_approval")
OTHER_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "bash": ("core/exec.run",),
    "bash_exec": ("core/exec.run",),
    "database_query": ("core/db.query",),
    "edit": ("core/fs.editText",),
    "file_copy": ("core/fs.copy",),
    "group:fs": ("core/fs.*",),
    "group:memory": ("core/memory.*",),
    "group:runtime": ("core/exec.run",),
    "group:web": ("core/web.*", "core/http.*"),
    "memory_get": ("core/memory.read",),
    "message": ("core/media.send",),
    "read": ("core/fs.readText",),
    "sessions_spawn": ("core/agent.spawn",),
    "web_search": ("core/web.search",),
    "write": ("core/fs.writeText",),
}
"""Names that neither the hub nor a face has."""


@dataclass
class _Lists:
    allow: dict[str, None] = field(default_factory=dict)
    deny: dict[str, None] = field(default_factory=dict)
    require_approval: dict[str, None] = field(default_factory=dict)


def from_openclaw(file: Mapping[str, Any], specs: Iterable[ToolSpec]) -> Imported:
    """The policy of a file: `{"agents": {AGENT: {"allow": […], "deny": […], "require_approval": […]}}}`, or for each
    agent `{TOOL: "allow" | "deny" | "require_approval"}`. Raises ImportRefused.

    `specs`: the tools of this hub, whose capabilities an agent needs for what it may use. An agent that has a list
    `allow` may use nothing besides; one without holds what another policy grants.
    """
    agents = file.get("agents", file)
    if not isinstance(agents, Mapping) or ("agents" in file and len(file) > 1):
        raise ImportRefused('expected {"agents": {AGENT: {"allow": […], "deny": […], "require_approval": […]}}}')
    imported = Imported({"extends": "none"})
    known = list(specs)
    grants: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    for agent, listed in agents.items():
        # The limit of a principal's name in policy.yaml: a longer one would make the whole result invalid.
        if not isinstance(agent, str) or not agent or len(agent) > 256:
            raise ImportRefused("the name of an agent must have 1 to 256 characters")
        lists = _lists(agent, listed, imported.warnings)
        rules += _rules(agent, lists)
        usable = lists.allow | lists.require_approval
        if capabilities := sorted({each for spec in _match_tools(usable, known) for each in spec.capabilities}):
            grants.append({"principals": [agent], "capabilities": capabilities})
        # OpenClaw's default is to allow; a translation that granted everything would allow more than a list does.
        if not lists.allow:
            imported.warnings.append(
                f"{agent}: tools that the file does not name are allowed there, and here only by grants of your own"
            )
        if lists.require_approval:
            imported.warnings.append(f"{agent}: approvals need a principal with the role approver (`roles`)")
        egress = [spec.name for spec in _match_tools(usable, known) if "network" in spec.capabilities]
        if egress:
            imported.warnings.append(f"{agent}: no host is open: add entries to `egress` for {', '.join(egress[:5])}")
        if any(spec.name == "core/exec.run" for spec in _match_tools(usable, known)):
            imported.warnings.append(f"{agent}: no command may run: add entries to `commands`")
    imported.document["grants"] = grants
    imported.document["rules"] = rules
    return imported


def _lists(agent: str, listed: Any, warnings: list[str]) -> _Lists:
    """Return the lists. Raises ImportRefused."""
    lists = _Lists()
    for strategy, name in _entries(agent, listed):
        tools = _tools(name)
        if not tools:
            # In capitals: of all omissions, only a lost denial widens what an agent may do.
            effect = "nothing is granted for it" if strategy != "deny" else "IT IS NOT DENIED BY THIS POLICY"
            warnings.append(f"{agent}: no tool of the hub is known as {name[:100]!r}, so {effect}")
        getattr(lists, strategy).update(dict.fromkeys(tools))
    return lists


def _entries(agent: str, listed: Any) -> Iterator[tuple[str, str]]:
    """Yield (strategy, tool)."""
    if not isinstance(listed, Mapping):
        raise ImportRefused(f"{agent}: expected an object of lists: {', '.join(STRATEGIES)}")
    for key, value in listed.items():
        if key in STRATEGIES and isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            yield from ((key, each) for each in value)
        elif isinstance(key, str) and key and value in STRATEGIES:
            yield value, key
        else:
            words = ", ".join(STRATEGIES)
            raise ImportRefused(
                f"{agent}.{key}: expected a list of tools under {words}, or one of these words for a tool"
            )


def _tools(name: str) -> Sequence[str]:
    """Return names or globs of the hub; none for a name without a counterpart."""
    if name == "*" or "/" in name:
        return (name,)
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    row = LOCAL_TOOLS.tools.get(name) or countbot().tools.get(name)
    return () if row is None else tuple(each.tool for each in row.rows().values())


def _match_tools(names: Iterable[str], specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    patterns = [Pattern(name) for name in names]
    return [spec for spec in specs if any(pattern.matches(spec.name) for pattern in patterns)]


def _rules(agent: str, lists: _Lists) -> Iterator[dict[str, Any]]:
    who: dict[str, Any] = {"principals": [agent]}
    if lists.deny:
        reason = f"The list `deny` of {agent[:100]} has this tool."
        yield {"id": rule_id(agent, "deny"), "effect": "DENY", **who, "tools": list(lists.deny), "reason": reason}
    if lists.require_approval:
        tools = list(lists.require_approval)
        yield {"id": rule_id(agent, "approval"), "effect": "REQUIRE_APPROVAL", **who, "tools": tools}
    # Grants are by capability and cover every tool that needs no more: so the list itself is kept as a DENY.
    if lists.allow and "*" not in lists.allow:
        usable = lists.allow | lists.require_approval
        reason = f"The lists of {agent[:100]} do not have this tool."
        when = f"!({_is_one_of(usable)})"
        yield {"id": rule_id(agent, "only"), "effect": "DENY", **who, "when": when, "reason": reason}


def _is_one_of(names: Iterable[str]) -> str:
    exact = [name for name in names if "*" not in name]
    globs = [".*".join(map(escape_pattern, name.split("*"))) for name in names if "*" in name]
    each = [f"tool.name in {cel_text(exact)}"] if exact else []
    if globs:
        each.append(f"tool.name.matches({cel_text('^(' + '|'.join(globs) + ')$')})")
    return " || ".join(each)
