"""ExportTools: tools in the form of a model's interface, or as functions of programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Principal
from toolhub_service.domain.source import known_to
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.export import Dialect, Export
from toolhub_service.registry.listing import UNCOUNTED, PageRequest, ToolPage, list_tools
from toolhub_service.registry.stubs_typescript import PYTHON, TYPESCRIPT, StubFormat
from toolhub_service.schema import canonical_json
from toolhub_service.transport.convert.tool import to_filter
from toolhub_service.transport.discovery import Discovery, shown_sources
from toolhub_service.transport.page_tokens import BytePage

_STUBS: dict[int, StubFormat] = {
    pb.EXPORT_FORMAT_PYTHON_STUBS: PYTHON,
    pb.EXPORT_FORMAT_TYPESCRIPT: TYPESCRIPT,
}
DIALECTS: dict[int, Dialect] = {
    pb.EXPORT_FORMAT_OPENAI: Dialect.OPENAI,
    pb.EXPORT_FORMAT_ANTHROPIC: Dialect.ANTHROPIC,
    pb.EXPORT_FORMAT_MCP: Dialect.MCP,
}


def export_tools(discovery: Discovery, request: pb.ExportToolsRequest, principal: Principal) -> pb.ExportToolsResponse:
    """Raises HubFailure INVALID_ARGUMENT for a bad page."""
    stubs = _STUBS.get(request.format)
    if stubs is not None:
        return _export_stubs(discovery, request, principal, stubs)
    dialect = DIALECTS[request.format]
    tools = BytePage[ToolSpec, _Exported](lambda spec: _exported(discovery.exporter.export(dialect, [spec])), _size_of)
    page = _export_page(discovery, request, principal, dialect.value, tools)
    definitions = b"[" + b",".join(tool.definition_json for tool in tools.rendered) + b"]"
    return _export(page, principal, {tool.exported: tool.name for tool in tools.rendered}, definitions)


def _export_stubs(
    discovery: Discovery, request: pb.ExportToolsRequest, principal: Principal, stubs: StubFormat
) -> pb.ExportToolsResponse:
    names = discovery.exporter.functions()
    tools = BytePage[ToolSpec, ToolSpec](
        lambda spec: spec, lambda spec: len(stubs.function(spec, names[spec.name].function).encode())
    )
    page = _export_page(discovery, request, principal, stubs.name, tools)
    named = {str(names[spec.name]): spec.name for spec in tools.rendered}
    return _export(page, principal, named, b"[]", stubs.whole(tools.rendered, names))


def _export_page(
    discovery: Discovery,
    request: pb.ExportToolsRequest,
    principal: Principal,
    form: str,
    tools: BytePage[ToolSpec, Any],
) -> ToolPage:
    """A model is only offered what it can call: ACTIVE tools that policy could allow."""
    viewer = discovery.viewer(principal)
    return list_tools(
        discovery.catalog,
        to_filter(request.filter),
        PageRequest(request.page_size, request.page_token, UNCOUNTED, f"export {form}"),
        viewer=replace(viewer, allowed=lambda spec: spec.state is ToolState.ACTIVE and viewer.allowed(spec)),
        sources=known_to(principal, discovery.sources()),
        fitting=tools,
    )


def _export(
    page: ToolPage, principal: Principal, names: dict[str, str], definitions: bytes, text: str = ""
) -> pb.ExportToolsResponse:
    return pb.ExportToolsResponse(
        tools_json=definitions,
        text=text,
        names=names,
        total_size=page.total_size,
        sources=shown_sources(page.sources, principal),
        revision=page.revision,
        next_page_token=page.next_token,
    )


class _Exported(NamedTuple):
    """One tool in a model's form."""

    exported: str
    name: str
    definition_json: bytes


def _exported(export: Export) -> _Exported:
    """The one tool of the export."""
    ((exported, name),) = export.names.items()
    return _Exported(exported, name, canonical_json.dumps(export.tools[0]))


def _size_of(tool: _Exported) -> int:
    return len(tool.definition_json) + len(tool.exported) + len(tool.name)
