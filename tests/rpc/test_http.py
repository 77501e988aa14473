"""The HTTP tools through a whole hub: arguments, limits and evidence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.http_server import RawServer, always, response, serving
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2

EGRESS = "egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8], methods: [GET, POST]}]\n"


@asynccontextmanager
async def web_hub(
    home: Path, body: bytes, more: str = "", content_type: str = "application/json"
) -> AsyncIterator[tuple[RunningHub, RawServer]]:
    async with (
        serving(always(response(body, content_type=content_type))) as server,
        running_hub(home, policy=OPEN_POLICY + EGRESS % server.port + more) as hub,
    ):
        yield hub, server


@pytest.mark.promise("purpose.required", "purpose.reads-need-none")
async def test_a_read_only_call_needs_no_purpose(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b"{}") as (hub, server):
        for tool in ("core/http.fetchText", "core/http.fetchJson", "core/http.request"):
            result = await hub.invoke(tool, {"url": server.url()}, purpose="")
            assert result.ok, result.error.message
            refused = await hub.invoke(tool, {"url": server.url(), "method": "POST"}, purpose="")
            assert refused.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
            assert refused.error.details["field"] == "purpose"
        assert len(server.asked) == 3


@pytest.mark.promise("evidence.cut-is-marked")
async def test_a_cut_text_is_marked_and_evidence_states_why_the_rest_is_not_kept(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b"x" * 5_000) as (hub, server):
        result = await hub.invoke("core/http.fetchText", {"url": server.url(), "maxBytes": 2_000})
        assert (result.truncated, json.loads(result.result_json)["truncated"]) == (True, True)
        assert "raise maxBytes, or use core/http.downloadFile" in result.evidence[-1].summary
        whole = await hub.invoke("core/http.fetchText", {"url": server.url()})
        assert (whole.truncated, json.loads(whole.result_json)["truncated"]) == (False, False)


@pytest.mark.promise("policy.bound-is-named")
async def test_the_policys_bound_is_reported_and_not_an_argument_that_cannot_help(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b'["' + b"x" * 5_000 + b'"]', "sandbox: {max_http_bytes: 2000}\n") as (hub, server):
        text = (await hub.value("core/http.fetchText", {"url": server.url()}))["text"]
        assert "the policy limits a response to 2000 bytes" in text
        assert "raise maxBytes" not in text
        refused = await hub.invoke("core/http.fetchJson", {"url": server.url()})
        assert refused.error.message.endswith("The policy allows no more: request less.")


@pytest.mark.promise("evidence.cut-is-marked")
async def test_a_result_that_is_cut_to_its_cap_is_marked_in_its_own_field_too(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b"x" * 2_000_000) as (hub, server):
        result = await hub.invoke("core/http.fetchText", {"url": server.url()})
        assert (result.truncated, json.loads(result.result_json)["truncated"]) == (True, True)
        assert len(result.artifacts) == 1


@pytest.mark.promise("evidence.http")
async def test_json_is_proved_by_its_status_and_the_names_of_its_fields(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b'{"id": 7, "name": "lamp"}') as (hub, server):
        result = await hub.invoke("core/http.fetchJson", {"url": server.url()})
        (proof,) = result.evidence
        assert proof.summary == "GET 200, 25 bytes: an object with id, name"
        assert (proof.attributes["status"], proof.attributes["fields"]) == ("200", "id,name")


async def test_a_blocked_network_is_not_dialled_although_egress_opens_it(tmp_path: Path) -> None:
    async with web_hub(tmp_path, b"{}", "blocked_cidrs: [127.0.0.0/24]\n") as (hub, server):
        refused = await hub.invoke("core/http.fetchText", {"url": server.url()})
        assert refused.error.kind == error_pb2.ERROR_KIND_HTTP_DISALLOWED_HOST
        assert server.asked == []


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html", "<meta charset=gbk><p>中文".encode("gbk"), "<p>中文"),
        ("text/html", '<meta charset="Shift_JIS"><p>日本'.encode("cp932"), "<p>日本"),
        ("text/html; charset=iso-8859-1", "\ufeff<p>grün".encode(), "<p>grün"),
    ],
)
async def test_a_page_is_text_by_the_charset_that_it_declares(
    tmp_path: Path, content_type: str, body: bytes, text: str
) -> None:
    async with web_hub(tmp_path, body, content_type=content_type) as (hub, server):
        assert (await hub.value("core/http.fetchText", {"url": server.url()}))["text"].endswith(text)
