"""Checks what sources refer to and is missing here, without starting or connecting to anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.sources_file import SourcesFile, values_of
from toolhub_service.app.doctor import Finding, ok, warn
from toolhub_service.app.kinds import kind_of
from toolhub_service.sections.source_config import ClientTls, Source, ValueMissing, resolve_value
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid


def source_checks(settings: Settings) -> Iterator[Finding]:
    """For `toolhub doctor`: return one finding, and one for each source that lacks something."""
    path = Paths(settings).sources
    try:
        sources = SourcesFile(path, required=bool(settings.sources.file)).load().sources
    except SettingsInvalid:  # keeps the hub from starting
        return
    yield from _check_unprefixed(settings, sources)
    if not sources:
        yield ok("sources", "none besides the hub itself; `toolhub sources add --help` shows how to add some")
        return
    lacking = {name: list(missing_for(source, settings)) for name, source in sources.items() if source.enabled}
    for name, problems in lacking.items():
        for problem in problems:
            yield warn("sources", f"{name}: {problem}", "Fix this; until then the source is DOWN.", f"{name}/*")
    for name, source in sources.items():
        for remark in kind_of(source).remarks(source) if source.enabled else ():
            yield warn("sources", f"{name}: {remark}", "Nothing is kept from being used by it.")
    whole = sum(not problems for problems in lacking.values())
    off = f" {len(sources) - len(lacking)} switched off;" if len(lacking) < len(sources) else ""
    advice = "`toolhub sources list` shows their state in a running hub"
    yield ok("sources", f"{whole} of {len(lacking)} have what they need;{off} {advice}")


def _check_unprefixed(settings: Settings, sources: Collection[str]) -> Iterator[Finding]:
    """Yield names in server.mcp.unprefixed_sources that match nothing."""
    known = {*sources, *settings.tools.trusted_namespaces, "core", "*"}
    for name in settings.server.mcp.unprefixed_sources:
        if name not in known:
            text = f"server.mcp.unprefixed_sources names {name}, which is no source"
            yield warn("mcp names", text, "Take it out, or correct it; `toolhub sources list` shows what there is.")


def missing_for(source: Source, settings: Settings) -> Iterator[str]:
    """Yield what the source refers to and is missing here, one sentence each."""
    kind = kind_of(source)
    if kind.package and find_spec(kind.package) is None:
        yield f"its packages are not installed: toolhub extras install {kind.name}"
    yield from kind.missing(source, settings.tools.trusted_namespaces)
    tls = getattr(source, "tls", ClientTls())
    for name in ("ca_file", "certificate_file", "key_file"):
        file = getattr(tls, name)
        if file and not Path(file).expanduser().is_file():
            yield f"tls.{name}: there is no file {file}"
    for place, value in values_of(source).items():
        try:
            resolve_value(value)
        except ValueMissing as missing:
            yield f"{place}: {missing}"


def find_unbounded(source: Source) -> Iterator[str]:
    """Yield which of its tools accept any path of the machine, one sentence each: `toolhub sources check` refuses
    them."""
    yield from kind_of(source).unbounded(source)
