"""policy.yaml text to a document, strictly: the safe YAML loader, no duplicate keys, no aliases, bounded size.

YAML drops the first of two equal keys silently (yaml/pyyaml#165) and aliases can expand without bound (the "billion
laughs"); in a file that says who may delete what, both are refused. Errors name path, line and the nearest key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
import yaml

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE
from toolhub_service.domain.verdict import CommandRule, EgressRule, FlagRule, Sandbox
from toolhub_service.guards.command_grammar import SAFE_COMMANDS, compiles
from toolhub_service.guards.commands import rule_faults
from toolhub_service.guards.urls import canonical_host, canonical_path
from toolhub_service.guards.yaml_faults import yaml_fault
from toolhub_service.guards.yaml_scalars import quotes_advice
from toolhub_service.policy.document import Command, Egress, PolicyDocument, SandboxRule
from toolhub_service.policy.patterns import Pattern
from toolhub_service.policy.selectors import matching_nobody, misspelt
from toolhub_service.policy.tenants import PLACEHOLDER
from toolhub_service.policy.tenants import unsound as unsound_tenants

# Names in a policy that match nothing known: a misspelt tool in a DENY rule forbids nothing, without any sign.
#
# They are not errors, because a policy may name tools, principals and capabilities that do not exist yet.

# Minimum similarity of a suggestion, as difflib measures it.
_NEAR = 0.6


class Known(msgspec.Struct, frozen=True):
    """The names that a policy can use; an empty set means that they are unknown, and matches are not checked."""

    tools: frozenset[str]
    capabilities: frozenset[str]
    principals: frozenset[str]
    unread: frozenset[str] = frozenset()
    """Namespaces of sources whose tools are not known."""
    issuers: frozenset[str] | None = None
    """Issuers whose tokens are accepted; None means that they are unknown."""


def unmatched(document: PolicyDocument, known: Known) -> Iterator[tuple[str, str]]:
    """Yield the path and a sentence for each pattern that matches nothing, in the order of the file's sections."""
    tools = _Names("tool", known.tools, known.unread)
    capabilities = _Names("capability", known.capabilities)
    principals = _Names("principal", known.principals)
    for index, grant in enumerate(document.grants):
        yield from capabilities.strange(f"grants[{index}].capabilities", grant.capabilities)
    for index, rule in enumerate(document.rules):
        yield from capabilities.strange(f"rules[{index}].capabilities", rule.capabilities)
    for section in ("rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            yield from tools.strange(f"{section}[{index}].tools", entry.tools)
    yield from matching_nobody(document, known.issuers, known.principals, principals.problem)
    # A misspelt source would stay visible to every tenant.
    namespaces = {tool.partition("/")[0] for tool in known.tools}
    sources = _Names("source", frozenset(namespaces | known.unread) if known.tools else frozenset())
    for index, tenant in enumerate(document.tenants):
        if tenant.name != PLACEHOLDER:
            yield from principals.strange(f"tenants[{index}].principals", tenant.principals)
        yield from sources.strange(f"tenants[{index}].sources", tenant.sources)


class _Names:
    """The known names of one kind; results are kept, because rules repeat names."""

    def __init__(self, kind: str, names: frozenset[str], unread: frozenset[str] = frozenset()) -> None:
        self._kind = kind
        self._names = names
        self._unread = unread
        self._fits: dict[str, bool] = {}

    def strange(self, path: str, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
        for index, text in enumerate(patterns):
            if problem := self.problem(text):
                yield f"{path}[{index}]", problem

    def problem(self, text: str) -> str:
        """Return why a pattern matches nothing; empty when it matches or the names are unknown."""
        is_strange = self._names and not self._fit(text)
        return f"`{text}` matches no known {self._kind}{self._near(text)}" if is_strange else ""

    def _fit(self, text: str) -> bool:
        if text not in self._fits:
            pattern = Pattern(text)
            namespace = text.partition("/")[0]
            self._fits[text] = (
                text in self._names
                or (not pattern.is_exact and any(map(pattern.matches, self._names)))
                or any(map(Pattern(namespace).matches, self._unread))
            )
        return self._fits[text]

    def _near(self, text: str) -> str:
        near = get_close_matches(text, self._names, n=1, cutoff=_NEAR)
        return f"; did you mean `{near[0]}`?" if near else ""


# From the document's egress, commands and sandbox to the values that guards use.


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


# Semantic errors of a well-typed policy document: duplicate ids, stars that grant nothing, impossible hosts.

Problem = tuple[str, str]
"""Path and sentence."""


def unsound(document: PolicyDocument) -> Iterator[Problem]:
    """Yield every problem, in the order of the file."""
    yield from misspelt(document)
    yield from _useless_stars(document)
    yield from unsound_tenants(document.tenants)
    yield from _doubled("rules", [rule.id for rule in document.rules])
    yield from _doubled("limits", [limit.id for limit in document.limits])
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
        yield from _egress(f"$.egress[{index}]", rule)
    yield from _cidrs("$.blocked_cidrs", document.blocked_cidrs)
    for index, command in enumerate(document.commands):
        yield from _command(f"$.commands[{index}]", command)
    yield from _doubled("commands", [command.name or "preset" for command in document.commands])
    yield from _doubled("denied_commands", [rule.id for rule in document.denied_commands])
    for index, denied in enumerate(document.denied_commands):
        if not compiles(denied.pattern):
            yield f"$.denied_commands[{index}].pattern", f"`{denied.pattern}` is not an RE2 pattern"


def _useless_stars(document: PolicyDocument) -> Iterator[Problem]:
    for index, grant in enumerate(document.grants):
        for place, text in enumerate(grant.capabilities):
            if "*" in text and text.startswith("d") and Pattern(text).matches(DANGER_DESTRUCTIVE):
                path = f"$.grants[{index}].capabilities[{place}]"
                yield path, f"a wildcard never covers {DANGER_DESTRUCTIVE}: name it"


def _doubled(section: str, ids: Iterable[str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, id in enumerate(ids):
        if id in seen:
            yield f"$.{section}[{index}]", f"`{id}` is used twice; each id must be unique"
        seen.add(id)


def _egress(path: str, rule: Egress) -> Iterator[Problem]:
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
    yield from _cidrs(f"{path}.cidrs", rule.cidrs)


def _cidrs(path: str, cidrs: Iterable[str]) -> Iterator[Problem]:
    for index, cidr in enumerate(cidrs):
        try:
            ipaddress.ip_network(cidr)
        except ValueError:
            yield (
                f"{path}[{index}]",
                f"`{cidr}` is not a network: give one such as 10.0.0.0/8 (host bits must be zero)",
            )


def _command(path: str, command: Command) -> Iterator[Problem]:
    if command.preset is None:
        yield from ((path, fault) for fault in rule_faults(command_rule(command)))
    elif command != Command(preset=command.preset):
        yield path, "`preset` cannot be combined with other keys: put further commands in entries of their own"


MAX_TEXT_CHARS = 1024 * 1024

Lines = dict[str, int]
"""From a path such as `$.rules[3].when` to its line, from 1."""


class InvalidPolicy(ValueError):
    """The document is not a valid policy, and the one in force stays. `str()` of the error is meant for an operator."""

    def __init__(self, problem: str, path: str = "", line: int | None = None) -> None:
        self.problem = problem
        self.path = path
        """A path such as `rules[3].when`; empty for the whole document."""
        self.line = line
        """From 1; None where the document was not text."""
        at = ", ".join(part for part in (f"line {line}" if line else "", path) if part)
        super().__init__(f"{at}: {problem}" if at else problem)


class _StrictLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # a gap of the stubs
            raise InvalidPolicy("aliases are not supported: write the value out", line=line)
        return super().compose_node(parent, index)


def parse_policy(source: str | Mapping[str, JsonValue]) -> tuple[PolicyDocument, Lines]:
    """Return the document of YAML text, or of data already loaded. Raises InvalidPolicy."""
    if isinstance(source, str):
        data, lines = _load(source)
    else:
        data, lines = source, {}
    try:
        document = msgspec.convert(data, PolicyDocument)
    except msgspec.ValidationError as error:
        raise _explained(str(error), lines) from None
    for path, problem in unsound(document):
        raise invalid(problem, path, lines)
    return document, lines


def invalid(problem: str, path: str, lines: Lines) -> InvalidPolicy:
    """Return the error for a place in the document, with the line of the nearest enclosing key."""
    place = path
    while place and place not in lines:
        place = re.sub(r"(\[[^\]]*\]|\.[^.\[]*|\$)$", "", place)
    return InvalidPolicy(problem, path.removeprefix("$").removeprefix("."), lines.get(place))


def _load(text: str) -> tuple[JsonValue, Lines]:
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidPolicy(f"the file has {len(text)} characters; at most {MAX_TEXT_CHARS} are read")
    lines: Lines = {}
    loader: Any = None
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        data = None if node is None else _value(loader, node, "$", lines)
        return {} if data is None else data, lines
    except yaml.MarkedYAMLError as error:
        what, line, column = yaml_fault(error)
        raise InvalidPolicy(
            f"not YAML: {what} (column {column})" if line else f"not YAML: {what}", line=line or None
        ) from None
    except yaml.YAMLError as error:
        raise InvalidPolicy(f"not YAML: {error}") from None
    except RecursionError:
        raise InvalidPolicy("nested too deeply") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidPolicy):
            raise
        raise InvalidPolicy("a value looks like a date or number and is not one; put it in quotes") from None
    finally:
        if loader is not None:
            loader.dispose()


def _value(loader: Any, node: yaml.Node, path: str, lines: Lines) -> JsonValue:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(loader, item, f"{path}[{index}]", lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        scalar: JsonValue = loader.construct_object(node, deep=True)
        if scalar is None or isinstance(scalar, bool | int | float | str):
            return scalar
    raise invalid(f"unsupported YAML type {node.tag.rsplit(':', 1)[-1]}: put the value in quotes", path, lines)


def _mapping(loader: Any, node: yaml.MappingNode, path: str, lines: Lines) -> JsonValue:
    found: dict[str, JsonValue] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str) or key_node.tag == "tag:yaml.org,2002:merge":
            raise InvalidPolicy("keys must be plain names", path.removeprefix("$").removeprefix("."), line)
        if key in found:
            first = lines[f"{path}.{key}"]
            where = f"lines {first} and {line}" if first != line else f"line {line}"
            problem = f"`{key}` appears twice ({where}); merge the two"
            raise InvalidPolicy(problem, path.removeprefix("$").removeprefix("."), line)
        found[key] = _value(loader, value_node, f"{path}.{key}", lines)
        lines[f"{path}.{key}"] = line
    return found


def _explained(message: str, lines: Lines) -> InvalidPolicy:
    problem, _, place = message.partition(" - at ")
    path = place.strip("`") or "$"
    unknown = re.search(r"unknown field `(.*)`", problem)
    if unknown is None:
        return invalid(quotes_advice(problem) + _near_choice(problem, path), path, lines)
    key = unknown.group(1)
    known = _keys_at(path)
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
    return invalid(f"unknown key `{key}`; {hint}", f"{path}.{key}", lines)


def _near_choice(problem: str, path: str) -> str:
    """Return the choice that an invalid value may have meant; empty for any other problem."""
    written = re.search(r"^Invalid enum value '(.*)'", problem, re.DOTALL)
    kind = _type_at(path)
    if written is None or not isinstance(kind, msgspec.inspect.LiteralType):
        return ""
    choices = {str(choice).casefold(): choice for choice in kind.values}
    near = get_close_matches(written.group(1).casefold(), choices, n=1, cutoff=0.5)
    return f"; did you mean `{choices[near[0]]}`?" if near else f"; allowed: {', '.join(map(str, kind.values))}"


def _type_at(path: str) -> msgspec.inspect.Type:
    """Return the type at a path of the document."""
    kind = msgspec.inspect.type_info(PolicyDocument)
    for step in re.findall(r"\.(\w+)|\[", path):
        kind = _inner(kind, step)
    return kind


def _keys_at(path: str) -> list[str]:
    """Return the known keys of the section at a path."""
    kind = _type_at(path)
    return [field.encode_name for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _inner(kind: msgspec.inspect.Type, step: str) -> msgspec.inspect.Type:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _inner(kind.type, step)
    if isinstance(kind, msgspec.inspect.StructType) and step:
        kind = next((field.type for field in kind.fields if field.encode_name == step), kind)
    elif isinstance(kind, msgspec.inspect.VarTupleType) and not step:
        kind = kind.item_type
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
