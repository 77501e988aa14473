"""SKILL.md: its frontmatter by the specification of Agent Skills, and the instructions below it.

It is parsed as the specification's guide for clients recommends: a broken rule causes a warning and the skill is used;
only a file without a description, or whose frontmatter cannot be parsed at all, is no skill. The frontmatter is
untrusted YAML: every value stays text, so that none becomes a number or date; aliases, tags and duplicate keys are
refused; and its size is limited, because PyYAML takes some 20 microseconds a byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import yaml

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.yaml_faults import yaml_problem

FILE_NAMES: Final = ("SKILL.md", "skill.md")
FILE_MAX_BYTES: Final = 1024 * 1024
FRONTMATTER_MAX_BYTES: Final = 16 * 1024
NAME_MAX_CHARS: Final = 64
DESCRIPTION_MAX_CHARS: Final = 1_024
COMPATIBILITY_MAX_CHARS: Final = 500
BODY_MAX_LINES: Final = 500
ALLOWED_TOOLS_MAX: Final = 200
_KEYS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# Found in real files: `description: Use when: …`, which is invalid YAML because of the second colon.
_PLAIN_LINE: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*): +([^\s\"'|>\[{&*!%@`#].*)")
# A word, with parentheses behind it: `Bash(git add:*)`.
_TOOL: Final = re.compile(r"[^\s,()]+(?:\([^()]*\))?")
_SHOWN_KEYS_MAX: Final = 5
_JSON_SCALAR: Final = re.compile(r"|true|false|-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?", re.ASCII)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class SkillInvalid(ValueError):
    """The file is no skill; the message says what to correct, without quoting the file."""


@dataclass(frozen=True, slots=True)
class SkillFile:
    """The content of a SKILL.md. All of it is untrusted."""

    name: str
    """As it is written; it may break the specification's rules, which `warnings` reports."""
    description: str
    body: str
    """The instructions, Markdown."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    allowed_tools: tuple[str, ...] = ()
    """Patterns such as `Read` and `Bash(git:*)`. They narrow what a skill may call and grant nothing."""
    warnings: tuple[str, ...] = ()
    """Rules of the specification that it breaks, one sentence each."""
    frontmatter: JsonObject = field(default_factory=lambda: _NOTHING)
    """All its fields, as JSON values."""


def read_skill_file(data: bytes, folder_name: str) -> SkillFile:
    """Parse a SKILL.md. `folder_name`: of its folder, which its name should equal. Raises SkillInvalid."""
    if len(data) > FILE_MAX_BYTES:
        raise SkillInvalid(f"it has more than {FILE_MAX_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SkillInvalid("it is not UTF-8") from None
    frontmatter, body = _split_frontmatter(text)
    warnings: list[str] = []
    fields = _fields(frontmatter, warnings)
    description = _text(fields, "description", warnings).strip()
    if not description:
        raise SkillInvalid("its frontmatter has no `description`: say what it does and when to use it")
    name = _text(fields, "name", warnings).strip()
    compatibility = _text(fields, "compatibility", warnings)
    warnings += _find_violations(fields, name, folder_name, description, compatibility, body)
    return SkillFile(
        name=name or folder_name,
        description=description,
        body=body,
        license=_text(fields, "license", warnings),
        compatibility=compatibility,
        metadata=_metadata(fields.get("metadata"), warnings),
        allowed_tools=_tools(fields.get("allowed-tools"), warnings),
        warnings=tuple(warnings),
        frontmatter=_fields(frontmatter, [], _Typed),
    )


def frontmatter_of(data: bytes) -> Mapping[str, Any]:
    """Return all fields of a SKILL.md's frontmatter, every value as it is written. Raises SkillInvalid."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SkillInvalid("it is not UTF-8") from None
    return _fields(_split_frontmatter(text)[0], [])


def _split_frontmatter(text: str) -> tuple[str, str]:
    """Return frontmatter and body."""
    first, newline, rest = text.partition("\n")
    if first.rstrip() != "---" or not newline:
        raise SkillInvalid("it does not begin with frontmatter: a line `---`, then `name:` and `description:`")
    end = re.search(r"^---[ \t]*$", rest, re.MULTILINE)
    if end is None:
        raise SkillInvalid("its frontmatter does not end: a line `---` is missing")
    if len(rest[: end.start()].encode()) > FRONTMATTER_MAX_BYTES:
        raise SkillInvalid(f"its frontmatter has more than {FRONTMATTER_MAX_BYTES:,} bytes")
    return rest[: end.start()], rest[end.end() :].strip("\n")


def _fields(frontmatter: str, warnings: list[str], loader: type[_Plain] | None = None) -> Mapping[str, Any]:
    """Return every value as text; with `_Typed` as JSON."""
    try:
        found = _parse_frontmatter(frontmatter, loader)
    except SkillInvalid:
        quoted = "\n".join(map(_quote_value, frontmatter.split("\n")))
        if quoted == frontmatter:
            raise
        found = _parse_frontmatter(quoted, loader)
        warnings.append("The frontmatter is not valid YAML: a value that has a `: ` must be in quotes.")
    if not isinstance(found, Mapping):
        raise SkillInvalid("its frontmatter has no keys: `name:` and `description:` are needed")
    return found


def _quote_value(line: str) -> str:
    """Return a line `key: value` whose value has another colon, with the value in quotes."""
    found = _PLAIN_LINE.fullmatch(line.rstrip())
    if found is None or ": " not in found[2]:
        return line
    value = found[2].replace("\\", "\\\\").replace('"', '\\"')
    return f'{found[1]}: "{value}"'


def _parse_frontmatter(frontmatter: str, loader: type[_Plain] | None = None) -> Any:
    try:
        return yaml.load(frontmatter, loader or _Plain)  # noqa: S506 - a BaseLoader, which makes nothing but text
    except yaml.YAMLError as broken:
        raise SkillInvalid(f"its frontmatter is not YAML: {yaml_problem(broken)}") from None
    except RecursionError:
        raise SkillInvalid("its frontmatter is nested too deeply") from None


class _Plain(yaml.BaseLoader):
    """Loads only text, lists and mappings: no aliases, which may expand without limit, no tags, no duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # a gap of the stubs
        if isinstance(event, yaml.events.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _yaml_error("anchors and aliases are not supported: write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error("tags are not supported: write the plain value", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error("a key must be text", key)
            if key.value in seen:
                raise _yaml_error("a key appears twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Typed(_Plain):
    """Also loads plain numbers, booleans and null as such; values with another spelling in JSON stay text."""

    def construct_scalar(self, node: Any) -> Any:
        if node.style is not None or not _JSON_SCALAR.fullmatch(node.value):
            return node.value
        value = json.loads(node.value) if node.value else None
        return value if value is None or json.dumps(value) == node.value else node.value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # Already checked, because it is loaded as plain text first.
        return {key.value: self.construct_object(value, deep) for key, value in node.value}


def _yaml_error(why: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, at.start_mark)


def _text(fields: Mapping[str, Any], key: str, warnings: list[str]) -> str:
    value = fields.get(key, "")
    if isinstance(value, str):
        return value
    warnings.append(f"`{key}` is no text and was left out.")
    return ""


def _find_violations(
    fields: Mapping[str, Any], name: str, folder_name: str, description: str, compatibility: str, body: str
) -> Iterator[str]:
    if not name:
        yield "It has no `name`: that of its folder is used."
    elif len(name) > NAME_MAX_CHARS:
        yield f"`name` has {len(name)} characters; the specification allows {NAME_MAX_CHARS}."
    elif _NAME.fullmatch(name) is None:
        yield "`name` may only have lower-case letters, digits and single hyphens between them."
    if name and name != folder_name:
        yield "`name` is not the name of its folder."
    if len(description) > DESCRIPTION_MAX_CHARS:
        yield f"`description` has {len(description):,} characters; the specification allows {DESCRIPTION_MAX_CHARS:,}."
    if len(compatibility) > COMPATIBILITY_MAX_CHARS:
        yield (
            f"`compatibility` has {len(compatibility):,} characters; the specification allows "
            f"{COMPATIBILITY_MAX_CHARS}."
        )
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        yield f"The specification knows no {_list_keys(unknown)}: such keys belong into `metadata`."
    if not body.strip():
        yield "It has no instructions below its frontmatter."
    elif body.count("\n") >= BODY_MAX_LINES:
        yield (
            f"Its instructions have {body.count(chr(10)) + 1:,} lines; the specification recommends less than "
            f"{BODY_MAX_LINES}, and files that are read when they are needed."
        )


def _list_keys(keys: list[str]) -> str:
    named = ", ".join(
        f"`{key[:40]}`" if key.isascii() and key.isprintable() else "`…`" for key in keys[:_SHOWN_KEYS_MAX]
    )
    return f"{named} and {len(keys) - _SHOWN_KEYS_MAX} more" if len(keys) > _SHOWN_KEYS_MAX else named


def _metadata(value: Any, warnings: list[str]) -> Mapping[str, str]:
    if value is None or value == "":
        return _NOTHING
    if not isinstance(value, Mapping):
        warnings.append("`metadata` is no mapping and was left out.")
        return _NOTHING
    kept = {key: text for key, text in value.items() if isinstance(text, str)}
    if len(kept) < len(value):
        warnings.append("`metadata` has values that are no text, which were left out.")
    return MappingProxyType(kept)


def _tools(value: Any, warnings: list[str]) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        warnings.append("`allowed-tools` is a list; the specification has words with spaces between them.")
        value = " ".join(value)
    if not isinstance(value, str):
        warnings.append("`allowed-tools` is no text and was left out: the skill is allowed no tool by it.")
        return ()
    if "," in value:
        warnings.append("`allowed-tools` has commas; the specification has spaces alone.")
    found = tuple(dict.fromkeys(_TOOL.findall(value)))
    if len(found) > ALLOWED_TOOLS_MAX:
        warnings.append(f"`allowed-tools` names more than {ALLOWED_TOOLS_MAX} tools; the first were kept.")
    return found[:ALLOWED_TOOLS_MAX]
