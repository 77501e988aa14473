"""What every core/http.* tool declares, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec import structs
from msgspec.structs import replace

from tests.fakes.http_server import always, response, serving
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tool_context import egress_context
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.tools.http.tools import http_tools
from toolhub_service.tools.tool import Tool, spec_of


@pytest.fixture
async def tools() -> AsyncIterator[dict[str, Tool]]:  # type: ignore[type-arg]
    client = EgressClient(GuardedTransport(FixedResolver(default=("127.0.0.1",))))
    yield {tool.name: tool for tool in http_tools(client)}
    await client.aclose()


def test_five_tools_are_offered(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    names = {"fetchText", "fetchJson", "head", "request", "downloadFile"}
    assert set(tools) == {f"core/http.{name}" for name in names}


def test_schemas_are_valid_and_accept_the_examples(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    for tool in tools.values():
        spec = spec_of(tool, source="core")
        Draft202012Validator.check_schema(spec.input_schema)
        Draft202012Validator.check_schema(spec.output_schema)
        for example in spec.examples:
            assert Draft202012Validator(spec.input_schema).is_valid(example.args), (spec.name, example)


def test_only_head_claims_to_be_read_only(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    assert [tool.name for tool in tools.values() if tool.annotations.read_only] == ["core/http.head"]


def test_call_that_only_reads_has_no_side_effects(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    for name in ("fetchText", "fetchJson", "request"):
        tool = tools[f"core/http.{name}"]
        assert not tool.has_side_effects(tool.In(url="https://a.example/"))
        assert tool.has_side_effects(tool.In(url="https://a.example/", method="POST"))
    assert not tools["core/http.head"].has_side_effects(tools["core/http.head"].In(url="https://a.example/"))
    download = tools["core/http.downloadFile"]
    assert download.has_side_effects(download.In(url="https://a.example/", dest_path="f"))


def test_url_and_method_are_checked_by_policy(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    for tool in tools.values():
        roles = {argument.name: argument.role for argument in tool.guarded}
        properties = spec_of(tool, source="core").input_schema["properties"]
        assert roles["url"] is ArgumentRole.URL
        assert set(roles) <= set(properties)  # type: ignore[arg-type]
        assert ("method" in properties) is (roles.get("method") is ArgumentRole.METHOD)  # type: ignore[operator]


def test_upstream_is_the_origin(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    for tool in tools.values():
        extra = {"dest_path": "a"} if tool.name.endswith("downloadFile") else {}
        assert tool.upstream(tool.In(url="https://API.example.com/x", **extra)) == "https://api.example.com"
        assert tool.upstream(tool.In(url="nonsense", **extra)) == ""


async def test_effects_show_no_secret(tools: dict[str, Tool], tmp_path: Path) -> None:  # type: ignore[type-arg]
    context = egress_context(folder=tmp_path)
    for tool in tools.values():
        extra = {"dest_path": "a"} if tool.name.endswith("downloadFile") else {}
        effects = tool.effects(tool.In(url="https://a.example/x?token=canary", **extra), context)
        assert "a.example" in effects[0]
        assert "canary" not in " ".join(effects)
    context.close()


async def test_a_plan_states_how_much_would_be_sent_and_where_it_would_be_stored(
    tools: dict[str, Tool],  # type: ignore[type-arg]
    tmp_path: Path,
) -> None:
    context = egress_context(folder=tmp_path)
    posts, fetches = tools["core/http.request"], tools["core/http.downloadFile"]
    posted = posts.effects(posts.In(url="https://a.example/x", method="POST", body="12345"), context)
    assert posted == ("Send POST https://a.example/x with 5 bytes.",)
    (tmp_path / "f").write_text("old")
    args = fetches.In(url="https://a.example/x", dest_path="f", overwrite=True, max_bytes=2_000)
    assert (
        fetches.effects(args, context)[1]
        == 'Write the answer to "f", replacing the 3 bytes there, at most 2,000 bytes.'
    )
    with pytest.raises(ToolFailure) as refused:
        fetches.effects(fetches.In(url="https://a.example/x", dest_path="f"), context)
    assert refused.value.error.kind is ErrorKind.ALREADY_EXISTS
    context.close()


async def test_evidence_names_who_answered_and_hides_secrets(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    async with serving(always(response(b"{}", set_cookie="canary"))) as server:
        for name in ("fetchText", "fetchJson", "head", "request"):
            tool, context = tools[f"core/http.{name}"], egress_context(server.rule())
            args = tool.In(url=server.url("/x?api_key=canary&page=1"), headers={"Authorization": "Bearer canary"})
            await tool.run(args, context)
            (evidence,) = context.evidence
            assert evidence.type is EvidenceType.URL
            assert evidence.ref == server.url("/x?api_key=***&page=1")
            assert evidence.attributes["address"] == "127.0.0.1"
            assert evidence.attributes["status"] == "200"
            assert "canary" not in repr(evidence)


async def test_deadline_of_the_call_is_stronger_than_the_argument(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    tool = tools["core/http.fetchText"]
    async with serving(always(b"")) as server:
        with pytest.raises(ToolFailure) as caught:
            await tool.run(tool.In(url=server.url()), egress_context(server.rule(), timeout_s=0.05))
        assert caught.value.error.kind is ErrorKind.HTTP_TIMEOUT


async def test_two_principals_with_one_key_have_two_at_the_host(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    tool = tools["core/http.request"]
    async with serving(always(response())) as server:
        rule = structs.replace(server.rule(), retry_with_key=True)
        for principal_id in ("ann", "bob", "ann"):
            context = replace(egress_context(rule), principal_id=principal_id, idempotency_key="order-1")
            await tool.run(tool.In(url=server.url(), method="POST"), context)
        anns, bobs, again = (asked.headers["idempotency-key"] for asked in server.asked)
        assert anns == again != bobs
        assert "ann" not in anns
