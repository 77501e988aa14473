"""Tools as servers of the field describe them, through a hub: none is lost for one part, and the operator is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.rpc.real_servers import sourced_hub
from toolhub.v1 import error_pb2
from toolhub.v1 import registry_service_pb2 as pb

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["mcp:*"]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
MAIL = {"type": "object", "properties": {"email": {"type": "string", "format": "email", "pattern": ZOD_EMAIL}}}
FIRST = "You MUST call this function before 'query-docs' to obtain a library ID."
TOOLS = [
    tool("mail", inputSchema={**MAIL, "required": ["email"]}),
    tool("dangling", outputSchema={"type": "object", "properties": {"a": {"$ref": "#/$defs/Nope"}}}),
    tool("typeless", inputSchema={"oneOf": [{"type": "object"}]}),
    {"name": "schemaless", "description": "It takes anything."},
    *(tool(name) for name in ("Get_User", "get_user", "GET USER")),
    tool("resolve-library-id", description=FIRST),
    tool("query-docs", title="Query Documentation"),
    tool("resolve-title", description=FIRST.replace("query-docs", "Query Documentation")),
]


class Polite(Script):
    async def _call(self, params: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": params["name"]}], "structuredContent": {"called": params["name"]}}


async def test_every_tool_of_a_server_as_it_is_can_be_called_without_a_person(tmp_path: Path) -> None:
    async with (
        serving(Polite(pages=[TOOLS])) as url,
        sourced_hub(tmp_path, {"acme": {"url": url}}, policy=POLICY) as hub,
    ):
        specs = [spec for spec in hub.hub.toolbox.catalog.all() if spec.source == "acme"]
        assert {spec.resource_id for spec in specs} == {str(each["name"]) for each in TOOLS}
        for spec in specs:
            assert await hub.value(spec.name, {"email": "a@b.co"}) == {"called": spec.resource_id}, spec
        refused = (await hub.invoke("acme/mail", {"email": 7})).error
        assert refused.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID
        sources = (await hub.registry.ListSources(pb.ListSourcesRequest())).sources
        (status,) = [source for source in sources if source.source == "acme"]
        told = "\n".join(status.diagnostics)
        assert (status.message, status.quarantined) == ("", 0)
    for clause in ("is not enforced", "leads nowhere", "inputSchema is missing", "`Get_User` is `acme/Get_User_"):
        assert clause in told
