"""core/web.search over the wire, against servers on loopback with the published formats of Brave and SearXNG."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, always, response, serving
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2

KEY = "BSA-0123456789abcdef"
BRAVE = {
    "type": "search",
    "query": {"original": "relay"},
    "web": {
        "type": "search",
        "results": [
            {
                "title": "Relay &amp; contactor",
                "url": "https://example.org/relay",
                "description": "A <strong>relay</strong> is\na switch.",
                "language": "en",
            },
            {"title": "Script", "url": "javascript:alert(1)", "description": "no page of the web"},
            {"title": 5, "url": "https://example.org/b"},
            *({"title": f"T{n}", "url": f"https://example.org/{n}", "description": "x" * 9_000} for n in range(30)),
        ],
    },
}
SEARXNG = {
    "query": "继电器",
    "number_of_results": 1,
    "results": [
        {
            "url": "https://example.net/继电器",
            "title": "继电器",
            "content": "一种电控制器件",
            "engine": "bing",
            "score": 1.0,
        }
    ],
    "answers": [],
    "unresponsive_engines": [],
}


@asynccontextmanager
async def searching(home: Path, raw: bytes, **search: Any) -> AsyncIterator[tuple[RunningHub, RawServer]]:
    """A hub without any egress, whose operator named an engine on loopback."""
    async with serving(always(raw)) as server:
        settings = {"web": {"search": {"base_url": server.url("/").rstrip("/"), **search}}}
        async with running_hub(home, policy=OPEN_POLICY, settings=settings) as hub:
            yield hub, server


def json_answer(value: Mapping[str, Any], status: int = 200, **headers: str) -> bytes:
    return response(json.dumps(value).encode(), status=status, content_type="application/json", **headers)


def query_of(asked: RecordedRequest) -> dict[str, list[str]]:
    return parse_qs(urlsplit(asked.target).query)


async def test_brave_is_asked_with_the_key_of_the_environment_and_answers_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    async with searching(tmp_path, json_answer(BRAVE), provider="brave") as (hub, server):
        result = await hub.invoke("core/web.search", {"query": "relay click", "count": 3}, purpose="")
        value = json.loads(result.result_json)
        assert value["results"][0] == {
            "title": "Relay & contactor",
            "url": "https://example.org/relay",
            "snippet": "A relay is a switch.",
        }
        assert [one["url"] for one in value["results"][1:]] == ["https://example.org/b", "https://example.org/0"]
        assert len(value["results"][2]["snippet"]) == 1_000
        assert (value["untrusted"], result.evidence[0].attributes["untrusted"]) == (True, "true")
        (asked,) = server.asked
        assert asked.target.startswith("/res/v1/web/search?")
        assert query_of(asked) == {"q": ["relay click"], "count": ["3"]}
        assert asked.headers["x-subscription-token"] == KEY
        assert KEY not in str(result)


async def test_a_searxng_in_a_private_network_is_asked_for_json(tmp_path: Path) -> None:
    async with searching(tmp_path, json_answer(SEARXNG), provider="searxng") as (hub, server):
        value = await hub.value("core/web.search", {"query": "继电器"})
        assert value["results"] == [
            {"title": "继电器", "url": "https://example.net/继电器", "snippet": "一种电控制器件"}
        ]
        assert urlsplit(server.asked[0].target).path == "/search"
        assert query_of(server.asked[0]) == {"q": ["继电器"], "format": ["json"]}
        for wrong in ({"query": ""}, {"query": "x", "count": 21}, {"query": "x", "count": 0}):
            refused = await hub.invoke("core/web.search", wrong)
            assert refused.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID


async def test_the_engines_answer_is_not_followed_elsewhere(tmp_path: Path) -> None:
    async with serving(always(json_answer(SEARXNG))) as forbidden:
        away = response(status=302, location=forbidden.url("/search"))
        async with searching(tmp_path, away, provider="searxng") as (hub, _):
            refused = await hub.invoke("core/web.search", {"query": "x"})
            assert refused.error.kind == error_pb2.ERROR_KIND_HTTP_DISALLOWED_HOST
            assert forbidden.connections == 0


@pytest.mark.parametrize(
    ("raw", "kind", "retryable", "expected"),
    [
        (json_answer({}, 429, retry_after="7"), error_pb2.ERROR_KIND_RATE_LIMITED, True, "no more searches"),
        (json_answer({}, 401), error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, False, "API key"),
        (json_answer({}, 503), error_pb2.ERROR_KIND_UPSTREAM_ERROR, True, "503"),
        (json_answer({}, 422), error_pb2.ERROR_KIND_UPSTREAM_ERROR, False, "422"),
        (response(b"<html>", content_type="text/html"), error_pb2.ERROR_KIND_UPSTREAM_ERROR, False, "JSON"),
        (json_answer({"web": []}), error_pb2.ERROR_KIND_UPSTREAM_ERROR, False, "JSON"),
    ],
    ids=["rate", "key", "down", "invalid", "html", "shape"],
)
async def test_every_failure_of_an_engine_has_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, kind: int, retryable: bool, expected: str
) -> None:
    monkeypatch.setenv("SEARCH_KEY", KEY)
    async with searching(tmp_path, raw, provider="brave", api_key_env="SEARCH_KEY") as (hub, _):
        result = await hub.invoke("core/web.search", {"query": "x"}, budget={"max_retries": 0})
        assert (result.error.kind, result.error.retryable) == (kind, retryable)
        assert expected in result.error.message
        if kind == error_pb2.ERROR_KIND_RATE_LIMITED:
            assert result.error.retry_after.seconds == 7


async def test_an_empty_result_is_an_empty_list(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    answer = json_answer({"type": "search", "query": {}})
    async with searching(tmp_path, answer, provider="brave", api_key_file=str(key)) as (hub, server):
        assert (await hub.value("core/web.search", {"query": "x"}))["results"] == []
        assert server.asked[0].headers["x-subscription-token"] == KEY


async def test_missing_settings_are_listed_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    reasons = {}
    for number, search in enumerate(({}, {"provider": "brave"}, {"provider": "searxng"})):
        async with running_hub(tmp_path / str(number), policy=OPEN_POLICY, settings={"web": {"search": search}}) as hub:
            refused = await hub.invoke("core/web.search", {"query": "x"})
            assert refused.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
            reasons[search.get("provider", "")] = str(refused.error.details["reason"])
    assert "web.search.provider" in reasons[""]
    assert "BRAVE_API_KEY" in reasons["brave"]
    assert "web.search.base_url" in reasons["searxng"]
