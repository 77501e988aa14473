"""What a policy can speak of on this machine: tools, capabilities, principals; and what in it fits none of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from toolhub_service.app.key_file import KeyFileInvalid
from toolhub_service.app.paths import Paths
from toolhub_service.app.sources_file import read_sources
from toolhub_service.domain import capability
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.policy.starter import LOCAL
from toolhub_service.policy.unmatched import Known
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid


def known_names(settings: Settings, tools: Collection[ToolSpec]) -> Known:
    """By the tools that a hub has or would have; files that cannot be read say nothing, and are told of elsewhere."""
    sources = _sources(settings)
    namespaces = {spec.name.partition("/")[0] for spec in tools}
    needed = {needs for spec in tools for needs in spec.capabilities}
    return Known(
        tools=frozenset(spec.name for spec in tools),
        capabilities=capability.KNOWN | capability.ALIASES.keys() | needed | set(_capabilities(sources)),
        principals=frozenset(_principals(settings)),
        unread=frozenset(sources.keys() - namespaces),
    )


def _sources(settings: Settings) -> Mapping[str, Any]:
    """The configured sources by name, as plain data."""
    path = Paths(settings).sources
    if not path.exists():
        return {}
    try:
        plain: dict[str, Any] = msgspec.to_builtins(read_sources(path).sources)
    except SettingsInvalid:
        return {}
    return plain


def _capabilities(sources: Mapping[str, Any]) -> Iterator[str]:
    """What callers of the sources' tools must hold; where a source says nothing, `<kind>:<name>`."""
    for name, entry in sources.items():
        yield f"{entry.get('kind', '')}:{name}"
        yield from _written(entry)


def _written(value: object) -> Iterator[str]:
    """Every capability that stands anywhere in an entry: of the source, a tool, a workflow."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "capabilities" and isinstance(inner, list | tuple):
                yield from map(str, inner)
            else:
                yield from _written(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _written(inner)


def _principals(settings: Settings) -> Iterable[str]:
    """Who can be told apart here; nobody, where there is no key yet."""
    try:
        named = {key.name for key in Paths(settings).key_file().read().values()}
    except (OSError, KeyFileInvalid):
        return ()
    return {LOCAL, *named} if named else ()
