"""What a reference of tests/original_names.yaml names, looked up where the hub itself declares it."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import tools_page
from google.protobuf.descriptor import FileDescriptor
from schema_words import Schema, main_branch, told_bounds, told_type
from tables import code

import toolhub.v1
from toolhub_service.app.kinds import KINDS, SHARED
from toolhub_service.cli.root import toolhub as command_line
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.kinds import ERROR_KINDS
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import KNOWN_CAPABILITIES, ToolSpec
from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import CODES, LOCAL_TOOLS
from toolhub_service.faces.permissions import PERMISSIONS
from toolhub_service.policy.document import PolicyDocument
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import all_settings
from toolhub_service.telemetry.names import METRICS

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
FACES: Final = {"local-tools": LOCAL_TOOLS, "countbot": countbot()}


@dataclass(frozen=True, slots=True)
class Found:
    """What a reference names."""

    told: str
    """Markdown."""
    schema: Schema = field(default_factory=dict)
    """Of an argument, a result or a setting; else empty."""

    @property
    def default(self) -> str:
        return code(json.dumps(self.schema["default"], ensure_ascii=False)) if "default" in self.schema else ""

    @property
    def bounds(self) -> str:
        """The range, or the accepted values."""
        bare = main_branch(self.schema)
        return told_bounds(self.schema) or (told_type(bare) if "enum" in bare else "")


@cache
def look_up(reference: str) -> Found:
    """What `kind words` names. Raises LookupError with what is not there."""
    kind, *words = reference.split(" ")
    try:
        return _KINDS[kind](*words)
    except TypeError as error:
        raise LookupError(f"{reference}: {error}") from None
    except (KeyError, AttributeError, ImportError, StopIteration) as error:
        raise LookupError(f"{reference}: there is no {error}") from None


# What the registry holds


@cache
def tools() -> Mapping[str, ToolSpec]:
    return {spec.name: spec for spec in tools_page.specs()}


def _tool(name: str) -> Found:
    return Found(code(tools()[name].name))


def _argument(tool: str, path: str) -> Found:
    return Found(f"`{path}` of `{tool}`", _property(tools()[tool].input_schema, path))


def _result(tool: str, path: str) -> Found:
    return Found(f"result `{path}` of `{tool}`", _property(tools()[tool].output_schema, path))


def _needs(tool: str, capability: str) -> Found:
    if capability not in tools()[tool].capabilities:
        raise KeyError(capability)
    return Found(f"`{tool}` needs `{capability}`")


def _limit(tool: str, name: str) -> Found:
    return Found(f"limit `{name}` of `{tool}`", {"default": getattr(tools()[tool].limits, name)})


def _property(schema: Schema, path: str) -> Schema:
    """The schema of `entries.name`, through arrays and definitions; without its description."""
    found: Any = schema
    for name in path.split("."):
        found = _inside(found, schema)["properties"][name]
    return {key: value for key, value in main_branch(found).items() if key != "description"}


def _inside(schema: Any, root: Schema) -> Any:
    """The object of a value, an item or a reference."""
    schema = main_branch(schema)
    if "$ref" in schema:
        return _inside(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    return _inside(schema["items"], root) if "items" in schema else schema


# What the domain, settings, policy and faces declare


def _error(name: str) -> Found:
    return Found(f"[`{ErrorKind[name].name}`](errors.md#{name.lower()})")


def _detail(kind: str, name: str) -> Found:
    if name not in ERROR_KINDS[ErrorKind[kind]].detail_names:
        raise KeyError(name)
    return Found(f"`details.{name}` of `{kind}`")


def _event(name: str) -> Found:
    return Found(f"event `{EventType[name].value}`")


def _metric(name: str) -> Found:
    return Found(code({metric.name: metric for metric in METRICS}[name].name))


def _capability(name: str) -> Found:
    if name not in KNOWN_CAPABILITIES:
        raise KeyError(name)
    return Found(f"capability `{name}`")


def _setting(path: str) -> Found:
    """A setting, or with `[]` a key of what one lists: `databases[].url`."""
    listed, _, key = path.partition("[].")
    if key:
        return Found(f"setting `{path}`", _key_of(Settings, path))
    setting = {setting.path: setting for setting in all_settings()}[listed]
    return Found(f"setting `{path}`", {} if setting.default in ("", None) else {"default": setting.default})


def _policy(path: str) -> Found:
    schema = _key_of(PolicyDocument, path)
    anchor = "every-key" if "." not in path else path.partition(".")[0].removesuffix("[]")
    return Found(f"policy [`{path}`](policy.md#{anchor})", schema)


def _key_of(root: type[msgspec.Struct], path: str) -> Schema:
    (first,), definitions = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
    whole = {**definitions[first["$ref"].rpartition("/")[2]], "$defs": definitions}
    schema = _property(whole, path.replace("[]", ""))
    return {
        key: value
        for key, value in schema.items()
        if key != "default" or isinstance(value, bool | int | float) or (value and isinstance(value, str))
    }


def _source(section: str, key: str) -> Found:
    """A key of sources.yaml by the section's class: `N8nWorkflow webhook`."""
    sections = {each.__name__: each for kind in KINDS for each in (kind.config, *kind.sections, *SHARED)}
    return Found(f"sources.yaml: `{key}`", _key_of(sections[section], key))


def _face(face: str, tool: str, argument: str = "") -> Found:
    row = FACES[face].tools[tool]
    if not argument:
        return Found(f"[`{tool}`](faces.md#{face}) of face `{face}`")
    schema: Any = row.parameters(row.rows())["properties"]
    if argument == row.chooser:
        return Found(f"`{argument}` chooses the tool", schema[argument])
    declared = next(each.arguments[argument] for each in row.rows().values() if argument in each.arguments)
    default = {} if declared.default is None else {"default": declared.default}
    return Found(f"`{argument}` → `{declared.to}` of `{row.tool}`", {**schema[argument], **default})


def _code(name: str) -> Found:
    if name not in CODES.values():
        raise KeyError(name)
    return Found(f"[`{name}`](faces.md#local-tools) of face `local-tools`")


def _permission(name: str) -> Found:
    tools_of, _ = PERMISSIONS[name]
    return Found(f"permission `{name}`: {', '.join(map(code, tools_of))}")


# What the contract, the packages, the commands and the pages hold


@cache
def _contract() -> Mapping[str, Any]:
    """Messages, services and enums of the contract by their short names."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(toolhub.v1.__path__, "toolhub.v1."):
        file: FileDescriptor | None = getattr(importlib.import_module(module.name), "DESCRIPTOR", None)
        if file is not None:
            found |= {**file.message_types_by_name, **file.services_by_name, **file.enum_types_by_name}
    return found


def _rpc(path: str) -> Found:
    service, method = path.split(".")
    return Found(f"RPC `{_contract()[service].name}.{_contract()[service].methods_by_name[method].name}`")


def _message(path: str) -> Found:
    message, name = path.split(".")
    return Found(f"`{_contract()[message].name}.{_contract()[message].fields_by_name[name].name}`")


def _enum(path: str) -> Found:
    enum, value = path.split(".")
    return Found(f"`{_contract()[enum].name}.{_contract()[enum].values_by_name[value].name}`")


def _python(path: str) -> Found:
    """`module:Class.attribute`; an attribute may be declared without a value."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        annotated = any(name in getattr(each, "__annotations__", {}) for each in getattr(found, "__mro__", ()))
        found = getattr(found, name, None) if annotated else getattr(found, name)
    return Found(f"Python `{names}`")


def _command(*words: str) -> Found:
    found: Any = command_line
    for word in words:
        found = found.get_command(click.Context(found), word)
        if found is None:
            raise KeyError(" ".join(words))
    return Found(f"`toolhub {' '.join(words)}`")


def _page(path: str) -> Found:
    name, _, section = path.partition("#")
    if not (DOCS / name).is_file():
        raise KeyError(name)
    headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
    if section and section not in {_anchor(heading) for heading in headings}:
        raise KeyError(path)
    return Found(f"[{section.replace('-', ' ') or name.removesuffix('.md')}]({path})")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


_KINDS: Final[Mapping[str, Callable[..., Found]]] = {
    "argument": _argument,
    "capability": _capability,
    "code": _code,
    "command": _command,
    "detail": _detail,
    "enum": _enum,
    "error": _error,
    "event": _event,
    "face": _face,
    "limit": _limit,
    "message": _message,
    "metric": _metric,
    "needs": _needs,
    "page": _page,
    "permission": _permission,
    "policy": _policy,
    "python": _python,
    "result": _result,
    "rpc": _rpc,
    "setting": _setting,
    "source": _source,
    "tool": _tool,
}


def faults(references: Sequence[str], declared: Mapping[str, Any]) -> list[str]:
    """Names among them that there are not, and where the first one has another default or bounds than `declared`."""
    found, wrong = [], []
    for reference in references:
        try:
            found.append(look_up(reference))
        except LookupError as error:
            wrong.append(str(error.args[0]))
    if wrong or not declared:
        return wrong
    if not found:
        return ["a default or bounds of nothing"]
    if "default" in declared and found[0].schema.get("default", ...) != declared["default"]:
        wrong.append(f"{references[0]}: the default is {found[0].default or 'none'}, not {declared['default']!r}")
    if "bounds" in declared and found[0].bounds.replace("`", "") != declared["bounds"]:
        wrong.append(f"{references[0]}: the bounds are {found[0].bounds or 'none'}, not {declared['bounds']!r}")
    return wrong
