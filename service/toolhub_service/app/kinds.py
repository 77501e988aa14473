"""The kinds of sources, one line each. Settings, `sources add`, doctor, docs and the registry read this list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from toolhub_service.adapters.caller_auth import PerUser, SourceAuth
from toolhub_service.adapters.comfyui.kind import COMFYUI
from toolhub_service.adapters.langchain.kind import LANGCHAIN
from toolhub_service.adapters.mcp.kind import MCP
from toolhub_service.adapters.n8n.kind import N8N
from toolhub_service.adapters.skill.kind import SKILL
from toolhub_service.adapters.source_kind import FileKeys, SourceKind
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolKind
from toolhub_service.sections.source_config import ClientTls, SecretRef, Section, Source, ToolTerms

if TYPE_CHECKING:
    from toolhub_service.adapters.source_kind import WorkflowReport

KINDS: Final[tuple[SourceKind[Any], ...]] = (MCP, LANGCHAIN, N8N, COMFYUI, SKILL)
BY_NAME: Final = {kind.name: kind for kind in KINDS}
BY_TOOL_KIND: Final[dict[ToolKind, SourceKind[Any]]] = {kind.kind: kind for kind in KINDS}
SHARED: Final[dict[type[Section], str]] = {
    ToolTerms: "tools: terms of tools",
    SecretRef: "SecretRef",
    ClientTls: "tls",
    SourceAuth: "auth",
    PerUser: "auth.per_user",
}
"""Sections that several kinds have, by their headings in docs/configuration.md."""
FILES: Final[dict[type, FileKeys]] = {
    SecretRef: ("file",),
    ClientTls: ("ca_file", "certificate_file", "key_file"),
    **{section: keys for kind in KINDS for section, keys in kind.files.items()},
}
"""Keys that name files or folders, by section."""
_BY_CONFIG: Final = {kind.config: kind for kind in KINDS}


def file_keys(part: object) -> tuple[str, ...]:
    """The keys of a section that name files or folders."""
    keys = FILES.get(type(part), ())
    return keys(part) if callable(keys) else keys


def kind_of(entry: Source) -> SourceKind[Any]:
    """The kind that declares the entry's section."""
    return _BY_CONFIG[type(entry)]


def preview_sources(sources: Mapping[str, Source], object_info: JsonObject | None) -> WorkflowReport:
    """Return the workflows of every enabled source that has some, checked without asking any server."""
    from toolhub_service.adapters.source_kind import WorkflowReport

    reports = [
        kind_of(entry).load_preview()(name, entry, object_info)
        for name, entry in sources.items()
        if entry.enabled and kind_of(entry).preview
    ]
    return WorkflowReport(
        tuple(tool for report in reports for tool in report.tools),
        tuple(problem for report in reports for problem in report.problems),
        tuple(note for report in reports for note in report.notes),
    )
