"""sources.yaml: read strictly, and followed while the hub serves.

    sources:
      files:                                    # also the namespace of its tools: files/read_file
        command: npx
        args: [-y, "@modelcontextprotocol/server-filesystem", /srv/docs]
      github:
        url: https://mcp.example.com/mcp
        headers: {Authorization: {file: /run/secrets/github, prefix: "Bearer "}}
        trust: approval
        tools: {"get_*": {read_only: true}}
      desk:
        kind: langchain
        load: ["langchain_community.agent_toolkits:FileManagementToolkit"]
        args: {root_dir: papers}
      crm:
        kind: n8n
        url: https://n8n.example.com
        api_key: {file: /run/secrets/n8n}
        workflows: {send_message: {webhook: send-message, input_schema: {type: object}}}
      images:
        kind: comfyui
        url: http://gpu-1:8188
        templates: [/etc/toolhub/comfyui]

Each source is converted separately, so that an error names it and the nearest key; duplicate names, or two that look
alike, are refused, because the second would silently replace the first.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import yaml
from msgspec import Meta

from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.app.config_files.editing import Stamp, stamp_of
from toolhub_service.app.kinds import BY_NAME, KINDS, SHARED, file_keys, kind_of
from toolhub_service.guards.yaml_faults import yaml_problem
from toolhub_service.guards.yaml_scalars import AsWrittenLoader, quotes_advice
from toolhub_service.registry.names import CORE_NAMESPACE, skeleton
from toolhub_service.sections.source_config import SecretRef, Section, Source, SourceInvalid, Value
from toolhub_service.settings.loading import SettingsInvalid

SourceName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
SOURCES_MAX = 64
# Relative files and folders are resolved against the folder of sources.yaml, so that a hub finds them wherever it is
# started, and `toolhub sources check` checks the same ones.

Part = TypeVar("Part")


class SourcesDocument(Section, frozen=True):
    sources: Annotated[dict[SourceName, Source], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)


def resolve_paths(document: SourcesDocument, folder: Path) -> SourcesDocument:
    """Return the source with absolute paths; `folder` is that of the file."""
    absolute = folder.absolute()
    return SourcesDocument(sources={name: _resolve_part(entry, absolute) for name, entry in document.sources.items()})


def named_files(part: Any) -> Iterator[str]:
    """Yield the files that decide what a source does or opens: secrets, certificates, templates."""
    if isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if name == "cwd" or name not in file_keys(part):
                yield from named_files(value)
            else:
                yield from (value if isinstance(value, tuple) else (value,) if value else ())
    elif isinstance(part, dict | tuple):
        for member in part.values() if isinstance(part, dict) else part:
            yield from named_files(member)


def _resolve_part(part: Part, folder: Path) -> Part:
    found: Any = part
    if isinstance(part, msgspec.Struct):
        named = file_keys(part)
        members = {name: getattr(part, name) for name in part.__struct_fields__}
        changed = {
            name: _whole(member, folder) if name in named else _resolve_part(member, folder)
            for name, member in members.items()
        }
        found = type(part)(**changed) if changed != members else part
    elif isinstance(part, dict):
        found = {name: _resolve_part(member, folder) for name, member in part.items()}
    elif isinstance(part, tuple):
        found = tuple(_resolve_part(member, folder) for member in part)
    return found  # type: ignore[no-any-return]  # of the same kind as what was given


def _whole(named: Any, folder: Path) -> Any:
    if isinstance(named, tuple):
        return tuple(_whole(each, folder) for each in named)
    return str(folder / Path(named).expanduser()) if named else named


NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Of a source."""
RESERVED: Final = frozenset({CORE_NAMESPACE, "custom", "registered"})
"""Names of the hub's own tools; names that look like one are refused, too."""
_FILE_MAX_BYTES = 4 * 1024 * 1024
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class SourcesFile:
    """The file, which need not exist unless the configuration names it."""

    def __init__(self, path: Path, *, required: bool = False, check: Callable[[Path], str] = lambda _: "") -> None:
        """`check` returns why a file must not be read, or nothing."""
        self.path = path
        self._check = check
        self._may_be_absent = not required
        self._seen: Stamp = None

    def has_changed(self) -> bool:
        """Return whether the file differs from the one at the last `load`."""
        return stamp_of(self.path) != self._seen

    def load(self) -> SourcesDocument:
        """Return the file's content; no sources when there is no file and never was one. Raises SettingsInvalid."""
        self._seen = stamp_of(self.path)
        if self._seen is None and self._may_be_absent:
            return SourcesDocument()
        if loose := self._check(self.path):
            raise SettingsInvalid(loose)
        self._may_be_absent = False  # sources in a vanished file must not be taken for removed sources
        return read_sources(self.path)


def read_sources(path: Path) -> SourcesDocument:
    """Return the sources with absolute paths. Raises SettingsInvalid, naming file, key and the nearest known key."""
    try:
        if path.stat().st_size > _FILE_MAX_BYTES:
            raise SettingsInvalid(f"{path}: larger than {_FILE_MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as missing:
        raise SettingsInvalid(f"{path}: {os.strerror(missing.errno or 0)}") from missing
    except UnicodeDecodeError as broken:
        raise SettingsInvalid(f"{path}: not UTF-8") from broken
    return resolve_paths(parse_sources(text, str(path)), path.parent)


def parse_sources(text: str, where: str) -> SourcesDocument:
    """Return the sources with paths as written; `where` names the text in messages. Raises SettingsInvalid."""
    try:
        data = yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as broken:
        raise SettingsInvalid(f"{where}: not YAML: {yaml_problem(broken)}") from None
    try:
        return SourcesDocument(sources=dict(_sources(data)))
    except SourceInvalid as wrong:
        raise SettingsInvalid(f"{where}: {wrong}") from wrong


def check_source_name(name: object, others: Mapping[Any, Any]) -> str:
    """Return the name. Raises SourceInvalid, which says why it cannot be used beside `others`."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise SourceInvalid(
            f"{name!r} cannot be the name of a source: lower-case letters, digits, `_` and `-`, 64 at most, quoted "
            "when YAML would take it for something else"
        )
    if skeleton(name) in RESERVED:
        raise SourceInvalid(f"`{name}` reads like what the hub offers itself; choose another name")
    rivals = (other for other in others if isinstance(other, str) and other != name)  # YAML reads `off` as a boolean
    twin = next((other for other in rivals if skeleton(other) == skeleton(name)), None)
    if twin is not None:
        raise SourceInvalid(f"`{name}` differs from `{twin}` by separators only; choose a name that reads differently")
    return name


def to_source(name: str, entry: object) -> Source:
    """Convert one entry of `sources`. Raises SourceInvalid, which begins with the path of the error."""
    if not isinstance(entry, dict):
        raise SourceInvalid(
            f"sources.{name}: must be a mapping with `command`, `url`, or `kind` and what that kind needs"
        )
    kind = entry.get("kind", "mcp")
    declared = BY_NAME.get(kind) if isinstance(kind, str) else None
    if declared is None:
        near = difflib.get_close_matches(str(kind), BY_NAME, n=1)
        advice = f"did you mean {near[0]}?" if near else f"there are {' and '.join(BY_NAME)}"
        raise SourceInvalid(f"sources.{name}.kind: there is no kind {str(kind)[:40]!r}; {advice}")
    try:
        source: Source = msgspec.convert({**entry, "kind": kind}, declared.config)
    except msgspec.ValidationError as broken:
        raise SourceInvalid(f"sources.{name}{_explain_error(broken, declared)}") from broken
    declared.check(f"sources.{name}", source)
    for at, terms in source.tools.items():
        if terms.idle_timeout_s is not None and "idle_timeout_s" not in declared.config.__struct_fields__:
            raise SourceInvalid(f"sources.{name}.tools.{at}.idle_timeout_s: only for sources of kind mcp")
    for at, value in values_of(source).items():
        if isinstance(value, SecretRef) and bool(value.env) == bool(value.file):
            raise SourceInvalid(f"sources.{name}.{at}: needs exactly one of `env` and `file`")
    return source


def values_of(source: Source) -> dict[str, Value]:
    """Return each value that may be a reference, by its path in the entry."""
    return {at: value for at, value in kind_of(source).values(source) if value}


class _Strict(AsWrittenLoader):
    """Refuses a duplicate key, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"`{key.value[:64]}` stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _sources(data: object) -> Iterator[tuple[str, Source]]:
    if data is None:
        return
    if not isinstance(data, dict):
        raise SourceInvalid("the top level must be a mapping with `sources`")
    for key in data:
        if key != "sources":
            near = "; did you mean `sources`?" if difflib.get_close_matches(str(key), ["sources"]) else ""
            raise SourceInvalid(f"{str(key)[:64]!r} is not known at the top level, only `sources` is{near}")
    entries = data.get("sources")
    if entries is None:
        return
    if not isinstance(entries, dict):
        raise SourceInvalid("sources: must be a mapping from name to source")
    if len(entries) > SOURCES_MAX:
        raise SourceInvalid(f"sources: {len(entries)} of them, at most {SOURCES_MAX}")
    for name, entry in entries.items():
        try:
            yield check_source_name(name, entries), to_source(name, entry)
        except SourceInvalid as wrong:
            text = str(wrong)
            raise SourceInvalid(text if text.startswith("sources.") else f"sources: {text}") from wrong


def _explain_error(broken: msgspec.ValidationError, kind: SourceKind[Any]) -> str:
    """Turn msgspec's `message - at `$.key`` into `.key: message`."""
    message = str(broken)
    if " - at `key` in `$" in message:
        path = message.rpartition("`$")[2].rstrip("`")
        return f"{path}: a name in it has other characters than letters, digits, `_`, `-` and `.`, or more than 100"
    text, _, place = message.partition(" - at `$")
    path = place.rstrip("`").replace("[...]", ".…")
    unknown = _UNKNOWN.search(text)
    if unknown is None:
        return f"{path}: {quotes_advice(text)}"
    key = unknown.group(1)
    return f"{path}: unknown key `{key}`{_advise(key, kind, is_of_entry=not path)}"


def _advise(key: str, kind: SourceKind[Any], *, is_of_entry: bool) -> str:
    """Return where an unknown key belongs, or the nearest known one. `is_of_entry`: it was written in the entry itself,
    not in a section of it."""
    kinds = [each.name for each in KINDS if key in each.config.__struct_fields__]
    if is_of_entry and kinds:
        return f"; only sources of kind {' and '.join(kinds)} have it"
    if kind.name in kinds:
        return "; it is a key of the source itself, not of this section"
    sections = (*SHARED, kind.config, *kind.sections)
    known = {field for section in sections for field in section.__struct_fields__}
    near = [] if key in known else difflib.get_close_matches(key, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
