"""Files and folders that sources.yaml names: those that are not absolute count from its own folder.

So a hub finds them wherever it is started, and `toolhub sources check` finds
what the hub will.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolhub_service.settings.source_terms import ClientTls, SecretRef
from toolhub_service.settings.sources import McpSource, SourcesDocument
from toolhub_service.settings.workflow_sources import ComfyUiSource

Part = TypeVar("Part")
_NAMED: dict[type, tuple[str, ...]] = {
    SecretRef: ("file",),
    ClientTls: ("ca_file", "certificate_file", "key_file"),
    McpSource: ("cwd",),
    ComfyUiSource: ("templates",),
}


def placed(document: SourcesDocument, folder: Path) -> SourcesDocument:
    """The same, with whole paths. `folder`: that of the file."""
    absolute = folder.absolute()
    return SourcesDocument(sources={name: _placed(entry, absolute) for name, entry in document.sources.items()})


def named_files(part: Any) -> Iterator[str]:
    """Files that decide what a source does or opens: secrets, certificates, templates."""
    if isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if name == "cwd" or name not in _NAMED.get(type(part), ()):
                yield from named_files(value)
            else:
                yield from (value if isinstance(value, tuple) else (value,) if value else ())
    elif isinstance(part, dict | tuple):
        for member in part.values() if isinstance(part, dict) else part:
            yield from named_files(member)


def _placed(part: Part, folder: Path) -> Part:
    found: Any = part
    if isinstance(part, msgspec.Struct):
        named = _NAMED.get(type(part), ())
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
