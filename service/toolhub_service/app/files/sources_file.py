"""sources.yaml: read strictly, followed while the hub serves, and edited as text.

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
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import yaml
from msgspec import Meta

from toolhub_service.app.files.editing import Stamp, stamp_of
from toolhub_service.app.kinds import BY_NAME, KINDS, SHARED, file_keys, kind_of
from toolhub_service.config.source_config import SecretRef, Section, Source, SourceInvalid, Value
from toolhub_service.guards.yaml_faults import yaml_problem
from toolhub_service.guards.yaml_scalars import AsWrittenLoader, load_as_written, quotes_advice
from toolhub_service.registry.catalog import CORE_NAMESPACE, skeleton
from toolhub_service.settings.loading import SettingsInvalid

SourceName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
SOURCES_MAX = 64
# Relative files and folders are resolved against the folder of sources.yaml, so that a hub finds them wherever it is
# started, and `toolhub sources check` checks the same ones.

Part = TypeVar("Part")


class SourcesDocument(Section, frozen=True):
    sources: Annotated[dict[SourceName, Source], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)


def placed(document: SourcesDocument, folder: Path) -> SourcesDocument:
    """Return the source with absolute paths; `folder` is that of the file."""
    absolute = folder.absolute()
    return SourcesDocument(sources={name: _placed(entry, absolute) for name, entry in document.sources.items()})


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


def _placed(part: Part, folder: Path) -> Part:
    found: Any = part
    if isinstance(part, msgspec.Struct):
        named = file_keys(part)
        members = {name: getattr(part, name) for name in part.__struct_fields__}
        changed = {
            name: _whole(member, folder) if name in named else _placed(member, folder)
            for name, member in members.items()
        }
        found = type(part)(**changed) if changed != members else part
    elif isinstance(part, dict):
        found = {name: _placed(member, folder) for name, member in part.items()}
    elif isinstance(part, tuple):
        found = tuple(_placed(member, folder) for member in part)
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

    def changed(self) -> bool:
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
    return placed(parse_sources(text, str(path)), path.parent)


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
        raise SourceInvalid(f"sources.{name}{_explained(broken)}") from broken
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


def _explained(broken: msgspec.ValidationError) -> str:
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
    sections = (*SHARED, *(section for kind in KINDS for section in (kind.config, *kind.sections)))
    known = {field for section in sections for field in section.__struct_fields__}
    near = difflib.get_close_matches(unknown.group(1), known, n=1)
    return f"{path}: unknown key `{unknown.group(1)}`" + (f"; did you mean `{near[0]}`?" if near else "")


# Editing sources.yaml as text, so that everything around a source stays as it was written.
#
# PyYAML reports where each source begins and ends; lines are inserted or removed there, and the result is parsed and
# compared with the intent. A file whose layout does not allow this is refused and left unchanged.

_INDENT = 2
_HEADING = "# Where tools come from besides the hub itself; a running hub follows this file.\n"


class NotEditable(ValueError):
    """The file's layout does not allow a change by a program without losing something."""


def with_sources(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these sources at its end. Raises NotEditable, also for an existing name."""
    before = _data(text)
    for name in entries:
        if name in before:
            raise NotEditable(f"`{name}` stands there already")
    return _checked(_put_in(text, entries), {**before, **entries})


def without_source(text: str, name: str) -> str:
    """Return the text without this source and the comment right above it.

    Raises NotEditable, KeyError for an unknown name.
    """
    before = _data(text)
    del before[name]
    block = _block(text)
    if block is None:
        raise NotEditable("`sources` is written in one line; remove it by hand")
    lines = text.splitlines(keepends=True)
    at = block.names.index(name)
    first = block.begins(lines, at)
    last = block.begins(lines, at + 1) if at + 1 < len(block.names) else block.end(lines)
    return _checked("".join(lines[:first] + lines[last:]), before)


def as_yaml(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return these sources as they are written below `sources:`."""
    given = {name: dict(entry) for name, entry in entries.items()}
    # A reference to a secret is read as one unit, so no line is broken.
    return str(yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=100_000, allow_unicode=True))


class _Block(msgspec.Struct, frozen=True):
    """A non-empty mapping of sources in block style, line by line."""

    names: list[str]
    starts: list[int]
    """Line of each name."""
    indent: int
    stop: int
    """The line after everything that YAML counts as part of it, including comments and blank lines."""

    def begins(self, lines: list[str], at: int) -> int:
        """Return the first line of a source: that of its name, or of the comment right above it."""
        line = self.starts[at]
        while line and lines[line - 1].startswith(" " * self.indent + "#"):
            line -= 1
        return line

    def end(self, lines: list[str]) -> int:
        """Return the line after the last source and the comments indented like it."""
        line = self.stop
        while line:
            text = lines[line - 1].lstrip()
            if text and not (text.startswith("#") and len(lines[line - 1]) - len(text) < self.indent):
                break
            line -= 1
        return line


def _put_in(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    key, value = _nodes(text)
    if key is None:
        start = text.rstrip() + "\n\n" if text.strip() else _HEADING
        return f"{start}sources:\n{_indented(entries, _INDENT)}"
    block = _block(text)
    if block is not None:
        lines = text.splitlines(keepends=True)
        at = block.end(lines)
        if lines[at - 1] and not lines[at - 1].endswith("\n"):
            lines[at - 1] += "\n"
        return "".join([*lines[:at], _indented(entries, block.indent), *lines[at:]])
    if isinstance(value, yaml.MappingNode) and value.value:
        raise NotEditable("`sources` is written in one line; write each source on lines of its own first")
    head, rest = text[: value.start_mark.index], text[value.end_mark.index :]
    line, newline, after = rest.partition("\n")
    return f"{(head.rstrip(' ') + line).rstrip()}{newline or chr(10)}{_indented(entries, _INDENT)}{after}"


def _indented(entries: Mapping[str, Mapping[str, Any]], indent: int) -> str:
    return textwrap.indent(as_yaml(entries), " " * indent)


def _nodes(text: str) -> tuple[Any, Any]:
    """Return the key `sources` and its value; (None, None) when the text has none."""
    document = yaml.compose(text, yaml.SafeLoader)
    if document is None:
        return None, None
    if not isinstance(document, yaml.MappingNode):
        raise NotEditable("the top level is no mapping")
    found = [(key, value) for key, value in document.value if key.value == "sources"]
    return found[0] if found else (None, None)


def _block(text: str) -> _Block | None:
    _, value = _nodes(text)
    if not isinstance(value, yaml.MappingNode) or not value.value or value.flow_style:
        return None
    keys = [key for key, _ in value.value]
    end = value.end_mark
    return _Block(
        [key.value for key in keys],
        [key.start_mark.line for key in keys],
        keys[0].start_mark.column,
        end.line if end.column == 0 else end.line + 1,
    )


def _data(text: str) -> dict[str, Any]:
    try:
        document = load_as_written(text) or {}
    except yaml.YAMLError as broken:
        raise SettingsInvalid(f"not YAML: {yaml_problem(broken)}") from None
    return dict(document.get("sources") or {}) if isinstance(document, dict) else {}


def _checked(text: str, meant: Mapping[str, Any]) -> str:
    try:
        if _data(text) == dict(meant):
            return text
    except SettingsInvalid:
        pass  # As bad as a text that parses to something else
    raise NotEditable("it is written in a way that cannot be changed without losing something; change it by hand")
