"""Permission files of older tools as a policy: what `toolhub policy import` prints.

A translation never allows more than the file does. An entry without a counterpart becomes a warning; it is omitted if
it allows, and kept as a refusal if it forbids. `parse_policy` accepts the result.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, EXECUTE_COMMAND, NETWORK, READ_FS, WRITE_FS
from toolhub_service.guards.commands.dangerous import runs_others
from toolhub_service.guards.commands.safe import SAFE_COMMANDS
from toolhub_service.guards.paths import check_path
from toolhub_service.policy.guard_values import canonical_pattern

PERMISSIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "read:file": (("core/fs.readText", "core/fs.listDir"), (READ_FS,)),
    "write:file": (("core/fs.writeText",), (WRITE_FS,)),
    "delete:file": (("core/fs.deletePath",), (WRITE_FS, DANGER_DESTRUCTIVE)),
    "execute:command": (("core/exec.run",), (EXECUTE_COMMAND,)),
    "network:outbound": (("core/http.request",), (NETWORK,)),
}
"""By permission of local-tools: the tools that need it, and the capabilities that those need."""

_FILES: Final = ("core/fs.readText", "core/fs.listDir", "core/fs.writeText", "core/fs.deletePath")
_RUN, _REQUEST = "core/exec.run", "core/http.request"
_TOOLS: Final = (*_FILES, _RUN, _REQUEST)
_KEYS: Final = ("permissions", "paths", "commands", "hosts")
_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")
_RULE_ID: Final = re.compile(r"[^A-Za-z0-9._-]")
_META: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FLAG: Final = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9-]*")
_PORTED: Final = re.compile(r"(\*|(?:\*\.)?[^:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")
_FOLDERS: Final = "/usr/bin:/bin:/usr/local/bin"
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_CONDITION_MAX: Final = 4_096


class ImportRefused(ValueError):
    """The file is not of the expected kind; the message says what is expected."""


class _Plain(yaml.SafeDumper):
    """Writes each value out: a policy has no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass
class Imported:
    """A policy, and what of the file it does not express."""

    document: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def text(self, title: str) -> str:
        """Return policy.yaml, with the warnings as comments at its head."""
        lines = [title, *(f"NOTE: {warning}" for warning in self.warnings)]
        # On one line each: a line break in a warning, which quotes the file, would end the comment.
        head = "".join(f"# {' '.join(line.split())}\n" for line in lines)
        body = yaml.dump(self.document, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
        return f"{head}{body}"


@dataclass(frozen=True)
class _User:
    id: str
    permissions: frozenset[str]
    paths: tuple[str, ...] | None
    """None: all of the workspace."""
    commands: tuple[tuple[str, ...], ...]
    hosts: tuple[tuple[str, int | None], ...]


def from_local_tools(file: Mapping[str, Any], principal: str, base: str = "") -> Imported:
    """The policy of a permission file, for the one principal that calls on behalf of its users.

    `file`: `{"users": {ID: {permissions, paths, commands, hosts}}}`; a list stands for permissions alone. `base`: the
    folder that absolute paths of the file lie below, which is the workspace here. Raises ImportRefused.
    """
    unknown = [name for name in file if name != "users"]
    users = file.get("users")
    if unknown or not isinstance(users, Mapping):
        raise ImportRefused(
            'expected {"users": {ID: {"permissions": […], "paths": […], "commands": […], "hosts": […]}}}'
        )
    imported = Imported({})
    known = [user for name, entry in users.items() if (user := _user(str(name), entry, base, imported.warnings))]
    held = frozenset().union(*(user.permissions for user in known))
    capabilities = dict.fromkeys(each for name, (_, needs) in PERMISSIONS.items() if name in held for each in needs)
    document = imported.document
    document["extends"] = "none"
    document["grants"] = [{"principals": [principal], "capabilities": list(capabilities)}]
    document["impersonate"] = [principal]
    document["rules"] = [
        *_rules_for_all(principal, known),
        *(rule for user in known for rule in _rules(principal, user)),
    ]
    # Deleting needs a plan by default, which the older tool did not have: its permission lifts that.
    if "delete:file" in held:
        document["rules"].append(
            {"id": "local-tools-delete", "effect": "ALLOW", "principals": [principal], "tools": ["core/fs.deletePath"]}
        )
    if egress := list(_egress(principal, known, imported.warnings)):
        document["egress"] = egress
    if commands := list(_commands(known, imported.warnings)):
        document["commands"] = commands
    return imported


# Reading


def _user(id: str, entry: Any, base: str, warnings: list[str]) -> _User | None:
    if not _USER.fullmatch(id):
        warnings.append(f"user {id[:100]!r} is left out: no user_id of a call can be so")
        return None
    entry = {"permissions": entry} if isinstance(entry, list) else entry
    if not isinstance(entry, Mapping):
        raise ImportRefused(f"users.{id}: expected a list of permissions, or an object with {', '.join(_KEYS)}")
    if unknown := [name for name in entry if name not in _KEYS]:
        raise ImportRefused(f"users.{id}.{unknown[0]}: unknown; known are {', '.join(_KEYS)}")
    lists = {key: _texts(entry.get(key), f"users.{id}.{key}") for key in _KEYS}
    permissions = lists["permissions"] or ()
    known = ", ".join(PERMISSIONS)
    strange = (name for name in permissions if name not in PERMISSIONS)
    warnings += [f"{id}: the permission {name[:100]!r} is left out; known are {known}" for name in strange]
    held = frozenset(permissions) & PERMISSIONS.keys()
    if "execute:command" in held and not lists["commands"]:
        warnings.append(f"{id}: execute:command without `commands` allows none here: list the commands")
    if "network:outbound" in held and not lists["hosts"]:
        warnings.append(
            f'{id}: network:outbound without `hosts` allows none here: list the hosts, or "*" for all public'
        )
    paths = lists["paths"]
    return _User(
        id,
        held,
        None if paths is None else tuple(_paths(id, paths, base, warnings)),
        tuple(_split(id, lists["commands"] or (), warnings)),
        tuple(_hosts(id, lists["hosts"] or (), warnings)),
    )


def _texts(value: Any, place: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ImportRefused(f"{place}: expected a list of texts")
    return tuple(value)


def _paths(id: str, paths: Iterable[str], base: str, warnings: list[str]) -> Iterator[str]:
    for path in paths:
        below = path
        if base and (path == base or path.startswith(f"{base.rstrip('/')}/")):
            # As text: the folder need not exist on this machine.
            below = posixpath.relpath(path, base)
        try:
            yield check_path(below)
        except ToolFailure:
            warnings.append(
                f"{id}: the path {path[:200]!r} is left out: paths here are relative to the workspace"
                + ("" if base else "; name with --base the folder that becomes it")
            )


def _split(id: str, commands: Iterable[str], warnings: list[str]) -> Iterator[tuple[str, ...]]:
    for command in commands:
        words = tuple(command.removesuffix(" *").split(" "))
        name, *rest = words
        if not _WORD.fullmatch(name) or not all(_WORD.fullmatch(word) or _FLAG.fullmatch(word) for word in rest):
            warnings.append(
                f"{id}: the command {command[:200]!r} is left out: give a name, a subcommand and flags only"
            )
        # `env` or `find -exec` in a list of commands would allow every other program.
        elif runs_others(name):
            warnings.append(f"{id}: the command {command[:200]!r} is left out: {name} can run any other program")
        else:
            yield words


def _hosts(id: str, hosts: Iterable[str], warnings: list[str]) -> Iterator[tuple[str, int | None]]:
    for host in hosts:
        found = _PORTED.fullmatch(host)
        try:
            name = canonical_pattern(found[1].strip("[]")) if found else ""
        except ToolFailure:
            name = ""
        # Port 1 stands in when none is given; any in the range would do.
        if not found or not name or int(found[2] or 1) not in range(1, 65_536):
            warnings.append(f"{id}: the host {host[:200]!r} is left out: give a name, *.name or an address, and a port")
            continue
        if not _is_public(name):
            warnings.append(f"{id}: {host} is no public address: it stays closed until `cidrs` of its entry opens it")
        yield name, int(found[2]) if found[2] else None


def _is_public(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_global
    except ValueError:
        return name != "localhost"


# Writing


def _rules_for_all(principal: str, users: Sequence[_User]) -> Iterator[dict[str, Any]]:
    yield _deny(
        "local-tools-known-users",
        principal,
        f"!(context.user_id in {cel_text([user.id for user in users])})",
        reason="The permission file does not name this user.",
    )
    yield _deny(
        "local-tools-only",
        principal,
        f"!(tool.name in {cel_text(list(_TOOLS))})",
        reason="The permission file knows the six tools of local-tools only.",
    )


def _rules(principal: str, user: _User) -> Iterator[dict[str, Any]]:
    is_user = f"context.user_id == {cel_text(user.id)}"
    for name, (tools, _) in PERMISSIONS.items():
        if name not in user.permissions:
            reason = f"{user.id} lacks the permission {name}."
            yield _deny(rule_id(user.id, f"no-{name.replace(':', '-')}"), principal, is_user, tools, reason=reason)
    if user.paths is not None:
        reason = f"{user.id} may use these paths only: {', '.join(user.paths) or 'none'}."[:500]
        yield _deny(
            rule_id(user.id, "paths"),
            principal,
            f"{is_user} && !({_below('args.path', user.paths)})",
            _FILES,
            reason=reason,
        )
        yield _deny(
            rule_id(user.id, "cwd"),
            principal,
            f"{is_user} && !({_below('args.cwd', user.paths)})",
            (_RUN,),
            reason=reason,
        )
    if "execute:command" in user.permissions:
        reason = f"{user.id} may run these commands only: {', '.join(map(' '.join, user.commands)) or 'none'}."[:500]
        yield _deny(
            rule_id(user.id, "commands"),
            principal,
            f"{is_user} && !({_is_command(user.commands)})",
            (_RUN,),
            reason=reason,
        )
    if "network:outbound" in user.permissions and ("*", None) not in user.hosts:
        reason = f"{user.id} may reach these hosts only: {', '.join(name for name, _ in user.hosts) or 'none'}."[:500]
        yield _deny(
            rule_id(user.id, "hosts"), principal, f"{is_user} && !({_is_host(user.hosts)})", (_REQUEST,), reason=reason
        )


def _deny(id: str, principal: str, when: str, tools: Sequence[str] = ("*",), *, reason: str) -> dict[str, Any]:
    rule = {"id": id, "effect": "DENY", "principals": [principal], "tools": list(tools), "when": when, "reason": reason}
    if len(when) > _CONDITION_MAX:
        raise ImportRefused(
            f"{id}: the list is too long for one rule; a condition has at most {_CONDITION_MAX} characters"
        )
    return rule


def rule_id(whose: str, about: str) -> str:
    """Return an id that is unique for a principal or user, if its name has only characters allowed in an id."""
    # 36 are a UUID whole; with the longest `about` and 8 digits of a digest 35 just fit the 64 of an id.
    name = _RULE_ID.sub("-", whose)[:36].lstrip("._-") or "any"
    return (
        f"{name}-{about}" if name == whose else f"{name[:35]}-{about}-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    )


def cel_text(value: Any) -> str:
    """Return a CEL literal, which for texts and lists of them is JSON."""
    return json.dumps(value, ensure_ascii=False)


def _below(argument: str, paths: Sequence[str]) -> str:
    each = [
        "true" if path == "." else f"{argument} == {cel_text(path)} || {argument}.startsWith({cel_text(path + '/')})"
        for path in paths
    ]
    return " || ".join(each) or "false"


def _is_command(commands: Sequence[tuple[str, ...]]) -> str:
    """Return a condition. A line must begin with these exact words, unquoted; an argv with these items."""
    if not commands:
        return "false"
    lines = "|".join("[ \t]+".join(map(escape_pattern, words)) for words in commands)
    items = " || ".join(
        f"args.argv.size() >= {len(words)} && "
        + " && ".join(f"args.argv[{place}] == {cel_text(word)}" for place, word in enumerate(words))
        for words in commands
    )
    # Anchored at both ends of the words: `git log` must not allow `git logout`.
    line = cel_text(f"^[ \t]*({lines})([ \t]|$)")
    return f"(has(args.command) && args.command.matches({line})) || (has(args.argv) && ({items}))"


def _is_host(hosts: Sequence[tuple[str, int | None]]) -> str:
    if not hosts:
        return "false"
    each = []
    for name, port in hosts:
        pattern = r"[^/?#@]+" if name == "*" else escape_pattern(name)
        if name.startswith("*."):
            pattern = r"([a-z0-9_-]+\.)+" + escape_pattern(name[2:])
        # Without a port the file meant the scheme's default, and a URL may spell that out.
        each.append(pattern + (f":{port}" if port else "(:80|:443)?"))
    # Up to the end of the authority: `https://good.example.evil.example` must not match `good.example`.
    pattern = f"^https?://({'|'.join(each)})([/?#]|$)"
    return f"args.url.matches({cel_text(pattern)})"


def escape_pattern(text: str) -> str:
    return _META.sub(lambda found: "\\" + found[0], text)


def _egress(principal: str, users: Sequence[_User], warnings: list[str]) -> Iterator[dict[str, Any]]:
    callers = [user for user in users if "network:outbound" in user.permissions]
    by_port: dict[int | None, dict[str, None]] = {}
    for user in callers:
        for name, port in user.hosts:
            by_port.setdefault(port, {})[name] = None
    if len({frozenset(user.hosts) for user in callers}) > 1:
        warnings.append(
            "users have different hosts: each request is checked against those of its user, but a redirect against "
            "those of all users together. Give users that must not meet principals of their own"
        )
    for port, names in by_port.items():
        entry: dict[str, Any] = {
            "principals": [principal],
            "tools": [_REQUEST],
            "hosts": list(names),
            "methods": _METHODS,
        }
        if port is not None:
            entry["ports"] = [port]
        yield entry


def _commands(users: Sequence[_User], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the grammars of all users' commands; a rule decides which user may run which."""
    asked: dict[str, list[tuple[str, ...]]] = {}
    for user in users:
        for name, *rest in user.commands if "execute:command" in user.permissions else ():
            asked.setdefault(name, []).append(tuple(rest))
    safe = {rule.name for rule in SAFE_COMMANDS}
    for name, calls in asked.items():
        if name in safe:
            continue
        path = shutil.which(name, path=_FOLDERS)
        if path is None:
            warnings.append(f"the command {name} is left out: it is not installed on this machine")
            continue
        subcommands = dict.fromkeys(call[0] for call in calls if call and not call[0].startswith("-"))
        flags = dict.fromkeys(word for call in calls for word in call if word.startswith("-"))
        entry: dict[str, Any] = {"name": name, "path": path}
        if subcommands and all(call and call[0] in subcommands for call in calls):
            entry["subcommands"] = list(subcommands)
        if flags:
            entry["flags"] = [{"flag": flag} for flag in flags]
        warnings.append(f"{name} takes no further flags and no arguments until its entry in `commands` names them")
        yield entry
    if any(name in safe for name in asked):
        yield {"preset": "safe"}
