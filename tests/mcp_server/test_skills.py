"""Skills over MCP (SEP-2640): listed with their digests, read through the nine steps, taken over by another hub."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PaginatedRequestParams, ReadResourceRequestParams, Request, Result
from pydantic import ConfigDict

from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from tests.rpc import real_servers as real
from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub.v1 import error_pb2

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["mcp:*", "skill:*"]}
rules:
  - {id: not-secret, tools: ["team/secret.read"], effect: DENY, reason: "Not for you."}
  - {id: asked, tools: ["team/asked.read"], effect: REQUIRE_APPROVAL, reason: "A person looks first."}
roles: [{principals: [local], roles: [agent, operator]}]
"""
TEXT = """---
name: pdf-forms
description: "Fill forms: PDF ones."
license: Apache-2.0
metadata:
  version: 1.0
  build: "7"
  draft: true
  price: 1.50
---
# Forms

Read `references/more info.md`.
"""
ROOT = "skill://team/pdf-forms/"
FILES: dict[str, str | bytes] = {
    "references/more info.md": "Mehr über Formulare.\r\n",
    "assets/logo.png": b"\x89PNG\0" * 100,
    "long.txt": "x" * 70_000,
}


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class ListSkills(Request[PaginatedRequestParams, Literal["skills/list"]]):
    method: Literal["skills/list"] = "skills/list"


class GetSkill(Request[ReadResourceRequestParams, Literal["skills/get"]]):
    method: Literal["skills/get"] = "skills/get"


def write_skills(folder: Path) -> None:
    write_skill(folder, "pdf-forms", text=TEXT, files=FILES)
    for name in ("secret", "asked"):
        write_skill(folder, name, description="Another.")
    write_skill(folder, "odd", text="---\nname: Odd Name\ndescription: Odd.\n---\nDo.\n")


async def skills_of(client: Client) -> dict[str, Any]:
    answer: Any = await client.session.send_request(ListSkills(params=PaginatedRequestParams()), AnyResult)
    assert answer.ttlMs
    return {entry["uri"]: entry for entry in answer.skills}


async def bytes_of(client: Client, uri: str) -> bytes:
    (contents,) = (await client.read_resource(uri)).contents
    assert contents.uri == uri
    text = getattr(contents, "text", None)
    return base64.b64decode(contents.blob) if text is None else str(text).encode()  # type: ignore[union-attr]


@pytest.mark.promise("mcpserver.skills")
async def test_skills_are_listed_and_each_file_is_read_as_it_is_listed(tmp_path: Path) -> None:
    write_skills(tmp_path / "skills")
    sources = {"team": {"kind": "skill", "skills": [{"path": str(tmp_path / "skills")}]}}
    real.write_sources(tmp_path / "hub", sources)
    async with mcp_hub(tmp_path / "hub", policy=POLICY) as hub:
        assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        for era in ERAS:
            async with hub.client(era) as client:
                listed = await skills_of(client)
                assert set(listed) == {f"{ROOT}SKILL.md", "skill://team/asked/SKILL.md"}
                skill = listed[f"{ROOT}SKILL.md"]
                metadata = {"version": 1.0, "build": "7", "draft": True, "price": "1.50"}
                assert skill["frontmatter"] == {
                    "name": "pdf-forms",
                    "description": "Fill forms: PDF ones.",
                    "license": "Apache-2.0",
                    "metadata": metadata,
                }
                for resource in skill["resources"]:
                    data = await bytes_of(client, resource["uri"])
                    assert len(data) == resource["size"]
                    assert resource["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
                assert {each["uri"].removeprefix(ROOT) for each in skill["resources"]} == {
                    "SKILL.md",
                    "references/more%20info.md",
                    "assets/logo.png",
                    "long.txt",
                }
                resources = {str(each.uri) for each in (await client.list_resources()).resources}
                assert f"{ROOT}SKILL.md" in resources
                got: Any = await client.session.send_request(
                    GetSkill(params=ReadResourceRequestParams(uri=f"{ROOT}SKILL.md")), AnyResult
                )
                assert got.skill == skill
                hidden = ("skill://team/secret/SKILL.md", f"{ROOT}../secret/SKILL.md", f"{ROOT}none", "skill://x")
                codes = set()
                for uri in hidden:
                    with pytest.raises(MCPError) as refused:
                        await client.read_resource(uri)
                    codes.add(refused.value.error.code)
                assert codes == {-32602 if era == ERAS[1] else -32002}
                params = ReadResourceRequestParams(uri="skill://team/secret/SKILL.md")
                with pytest.raises(MCPError) as unknown:
                    await client.session.send_request(GetSkill(params=params), AnyResult)
                assert unknown.value.error.code == -32602
                with pytest.raises(MCPError) as asked:
                    await client.read_resource("skill://team/asked/SKILL.md")
                assert asked.value.error.data["toolhub/error"]["kind"] == "APPROVAL_REQUIRED"
        read = [each.event for each in await hub.grpc.events(tool="team/pdf-forms.read")]
        assert read
        assert read[-1].labels["entrance"] == "mcp"


@pytest.mark.promise("mcpserver.skills")
async def test_another_hub_takes_the_skills_over_and_holds_them_to_their_digests(tmp_path: Path) -> None:
    write_skills(tmp_path / "skills")
    sources = {"team": {"kind": "skill", "skills": [{"path": str(tmp_path / "skills")}]}}
    real.write_sources(tmp_path / "hub", sources)
    async with mcp_hub(tmp_path / "hub", policy=POLICY) as hub:
        assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        upstream = {"up": {"kind": "mcp", "url": hub.url, "trust": "always"}}
        async with real.sourced_hub(tmp_path / "second", upstream, policy=POLICY.replace("team/", "none/")) as second:
            value = await second.value("up/pdf-forms.read")
            assert value["instructions"].startswith("# Forms")
            assert {each["path"] for each in value["resources"]} == set(FILES)
            text = await second.value("up/pdf-forms.read", {"resource": "references/more info.md"})
            assert text["text"] == FILES["references/more info.md"]
            error = (await second.invoke("up/asked.read")).error
            assert error.kind != error_pb2.ERROR_KIND_UNSPECIFIED
            assert "APPROVAL_REQUIRED" in error.message
