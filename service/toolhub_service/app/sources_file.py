"""sources.yaml: read strictly, followed while the hub serves, its references resolved when a source is opened.

Each source is converted by itself, so that what is wrong is told by its name and its nearest key; a name twice, or two
that read alike, is refused, for the second would silently take the place of the first.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from toolhub_service.app.file_stamp import Stamp, stamp_of
from toolhub_service.app.source_places import placed
from toolhub_service.app.source_rules import SourceInvalid, check_whole
from toolhub_service.registry.names import CORE_NAMESPACE, skeleton
from toolhub_service.settings.loading import SettingsInvalid
from toolhub_service.settings.source_terms import ClientTls, SecretRef, ToolTerms, Value
from toolhub_service.settings.sources import (
    SOURCES_MAX,
    AnySource,
    ClientCredentials,
    LangChainSource,
    McpSource,
    SourcesDocument,
)
from toolhub_service.settings.workflow_sources import (
    BusinessError,
    ComfyUiBackend,
    ComfyUiSource,
    N8nDiscovery,
    N8nSource,
    N8nWorkflow,
)
from toolhub_service.settings.yaml_problem import yaml_problem

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Of a source."""
RESERVED: Final = frozenset({CORE_NAMESPACE, "custom", "registered"})
"""Names of what the hub offers itself; what reads like one is refused, too."""
_FILE_MAX_BYTES = 4 * 1024 * 1024
_SECRET_MAX_BYTES = 64 * 1024
_KINDS: Final = ("mcp", "langchain", "n8n", "comfyui")
_SECTIONS = (
    McpSource,
    LangChainSource,
    N8nSource,
    N8nWorkflow,
    N8nDiscovery,
    BusinessError,
    ComfyUiSource,
    ComfyUiBackend,
    ToolTerms,
    SecretRef,
    ClientCredentials,
    ClientTls,
)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class ValueMissing(ValueError):
    """A value that is kept elsewhere is not there; the message says where it was looked for, never what was found."""


class SourcesFile:
    """One file, which need not be there unless the configuration names it."""

    def __init__(self, path: Path, *, required: bool = False, judge: Callable[[Path], str] = lambda _: "") -> None:
        """`judge` says why a file must not be read, or nothing."""
        self.path = path
        self._judge = judge
        self._may_be_absent = not required
        self._seen: Stamp = None

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load`."""
        return stamp_of(self.path) != self._seen

    def load(self) -> SourcesDocument:
        """What it says; no sources when there is no file and never was one. Raises SettingsInvalid."""
        self._seen = stamp_of(self.path)
        if self._seen is None and self._may_be_absent:
            return SourcesDocument()
        if loose := self._judge(self.path):
            raise SettingsInvalid(loose)
        self._may_be_absent = False  # sources that were there and vanished must not be taken for sources taken away
        return read_sources(self.path)


def read_sources(path: Path) -> SourcesDocument:
    """With whole paths. Raises SettingsInvalid, which names file, key and the nearest known one."""
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
    """Paths as they are written; `where` names the text in messages. Raises SettingsInvalid."""
    try:
        data = yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as broken:
        raise SettingsInvalid(f"{where}: not YAML: {yaml_problem(broken)}") from None
    try:
        return SourcesDocument(sources=dict(_sources(data)))
    except SourceInvalid as wrong:
        raise SettingsInvalid(f"{where}: {wrong}") from wrong


def check_source_name(name: object, others: Mapping[Any, Any]) -> str:
    """The name. Raises SourceInvalid, which says why it cannot be one beside `others`."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise SourceInvalid(
            f"{name!r} cannot be the name of a source: lower-case letters, digits, `_` and `-`, 64 at most, quoted "
            "when YAML would take it for something else"
        )
    if skeleton(name) in RESERVED:
        raise SourceInvalid(f"`{name}` reads like what the hub offers itself; choose another name")
    rivals = (other for other in others if isinstance(other, str) and other != name)  # YAML takes `off` for a boolean
    twin = next((other for other in rivals if skeleton(other) == skeleton(name)), None)
    if twin is not None:
        raise SourceInvalid(f"`{name}` differs from `{twin}` by separators only; choose a name that reads differently")
    return name


def to_source(name: str, entry: object) -> AnySource:
    """One entry of `sources`. Raises SourceInvalid, which begins with the path of what is wrong."""
    if not isinstance(entry, dict):
        raise SourceInvalid(
            f"sources.{name}: must be a mapping with `command`, `url`, or `kind` and what that kind needs"
        )
    kind = entry.get("kind", "mcp")
    if not isinstance(kind, str) or kind not in _KINDS:
        near = difflib.get_close_matches(str(kind), _KINDS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"there are {' and '.join(_KINDS)}"
        raise SourceInvalid(f"sources.{name}.kind: there is no kind {str(kind)[:40]!r}; {advice}")
    try:
        source: AnySource = msgspec.convert({**entry, "kind": kind}, AnySource)
    except msgspec.ValidationError as broken:
        raise SourceInvalid(f"sources.{name}{_explained(broken)}") from broken
    check_whole(f"sources.{name}", source)
    return source


def resolve_value(value: Value, environment: Mapping[str, str] = os.environ) -> str:
    """The text itself, or what the environment or a file holds, after its prefix. Raises ValueMissing."""
    if isinstance(value, str):
        return value
    if value.env:
        held = environment.get(value.env)
        if held is None:
            raise ValueMissing(f"the environment variable {value.env} is not set for the hub")
        return value.prefix + held
    return value.prefix + _held(value.file)


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would keep the last."""

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


def _sources(data: object) -> Iterator[tuple[str, AnySource]]:
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
    """`.key: what is wrong` in the place of msgspec's `what is wrong - at `$.key``."""
    told = str(broken)
    if " - at `key` in `$" in told:
        path = told.rpartition("`$")[2].rstrip("`")
        return f"{path}: a name in it has other characters than letters, digits, `_`, `-` and `.`, or more than 100"
    text, _, place = told.partition(" - at `$")
    path = place.rstrip("`").replace("[...]", ".…")
    unknown = _UNKNOWN.search(text)
    if unknown is None:
        return f"{path}: {text}"
    known = {field for section in _SECTIONS for field in section.__struct_fields__}
    near = difflib.get_close_matches(unknown.group(1), known, n=1)
    return f"{path}: there is no key `{unknown.group(1)}`" + (f"; did you mean `{near[0]}`?" if near else "")


def _held(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_SECRET_MAX_BYTES + 1)
        if len(data) > _SECRET_MAX_BYTES:
            raise ValueMissing(f"{path} is larger than {_SECRET_MAX_BYTES:,} bytes")
        return data.decode().rstrip()
    except OSError as missing:
        # Not `{path}: …`: where a path ends in `token`, what follows its colon would be hidden.
        raise ValueMissing(f"the file {path} cannot be read: {os.strerror(missing.errno or 0)}") from missing
    except UnicodeDecodeError as broken:
        raise ValueMissing(f"{path} is not UTF-8 text") from broken
