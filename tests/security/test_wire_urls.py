"""One resource, many spellings: what a condition sees, what egress judges and what is sent are the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.corpora import load_json, load_lines
from tests.fakes.http_server import RawServer, by_target, response, serving
from tests.fakes.keyed_hub import kind
from tests.fakes.resolvers import FixedResolver
from tests.hub import RunningHub, running_hub

POLICY = """
extends: none
grants: [{{principals: [local], capabilities: [network]}}]
rules:
  - {{id: no-admin, effect: DENY, tools: ["core/http.*"], when: 'args.url.contains("/admin")'}}
egress:
  - {{hosts: ["127.0.0.1"], schemes: [http], ports: [{port}], {paths}cidrs: [127.0.0.0/8]}}
"""
SPELLINGS = ["/%61dmin", "/v1/..%2fadmin", "/v1/%2e%2e/admin", "/v1/../admin", "/v1/x/../../admin", "/v1/..;/admin"]
ANSWERS = {
    "/v1/a": response(b"{}"),
    "/v1/group%2Fname?b=2&a=1": response(b"{}"),
    "/v1/away": response(status=302, location="/v1/%2e%2e/%61way"),
    "/v1/back": response(status=302, location="%2E/x/../a"),
}


@asynccontextmanager
async def hub_and_web(tmp_path: Path, prefix: str = "") -> AsyncIterator[tuple[RunningHub, RawServer]]:
    paths = f"paths: [{prefix}], " if prefix else ""
    async with (
        serving(by_target(ANSWERS)) as web,
        running_hub(tmp_path, policy=POLICY.format(port=web.port, paths=paths)) as hub,
    ):
        yield hub, web


async def fetched(hub: RunningHub, url: str) -> Any:
    return await hub.invoke("core/http.fetchJson", {"url": url}, budget={"max_retries": 0})


@pytest.mark.parametrize("path", SPELLINGS)
async def test_no_spelling_gets_past_a_condition_on_paths(tmp_path: Path, path: str) -> None:
    """Fails at befa727: `/%61dmin` and `/v1/..%2fadmin` reach the server."""
    async with hub_and_web(tmp_path) as (hub, web):
        assert kind(await fetched(hub, web.url(path))) in ("POLICY_DENIED", "INVALID_INPUT")
        assert web.asked == []


@pytest.mark.parametrize("path", [*SPELLINGS, "/v10", "/", "//v1/a", "/v1%2Fa"])
async def test_no_spelling_gets_past_the_prefix_of_an_egress_rule(tmp_path: Path, path: str) -> None:
    async with hub_and_web(tmp_path, "/v1") as (hub, web):
        result = await fetched(hub, web.url(path))
        assert kind(result) in ("POLICY_DENIED", "INVALID_INPUT", "HTTP_DISALLOWED_HOST")
        assert web.asked == []


async def test_the_checked_url_is_the_sent_one(tmp_path: Path) -> None:
    """Fails at befa727: the server is sent the caller's spelling."""
    async with hub_and_web(tmp_path) as (hub, web):
        for path in ("/v1/%61", "/x/../v1/./a", "/v1/group%2fname?b=2&a=%31"):
            assert (await fetched(hub, web.url(path))).ok, path
        assert [asked.target for asked in web.asked] == ["/v1/a", "/v1/a", "/v1/group%2Fname?b=2&a=1"]


async def test_redirects_are_checked_in_the_same_spelling(tmp_path: Path) -> None:
    async with hub_and_web(tmp_path, "/v1") as (hub, web):
        assert kind(await fetched(hub, web.url("/v1/away"))) == "HTTP_DISALLOWED_HOST"
        back = await fetched(hub, web.url("/v1/back"))
        assert json.loads(back.result_json)["url"] == web.url("/v1/a")


async def test_no_url_ends_as_a_defect_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails at befa727: `http://xn--4ca._x.example/` is answered INTERNAL."""
    names = [case["input"] for case in load_json("ssrf/wpt_toascii.json.gz") if isinstance(case, dict)]
    urls = ["http://xn--4ca._x.example/", "https://xn--4ca._x.example/a", *(f"http://{name}/" for name in names)]
    urls += [*load_json("ssrf/patt_ssrf_urls.json.gz"), *load_lines("ssrf/seclists_SSRF_hacktricks.txt.gz")]
    resolve = FixedResolver({}, default=("0.0.0.0",)).resolve  # resolves, and leads nowhere that may be dialled
    monkeypatch.setattr("toolhub_service.egress.resolver.SystemResolver.resolve", lambda _, *at: resolve(*at))
    policy = """
extends: none
grants: [{principals: [local], capabilities: [network]}]
egress: [{hosts: ["*"]}]
"""
    async with running_hub(tmp_path, policy=policy) as hub:
        for url in urls:
            if url and (answer := await fetched(hub, url.encode("utf-8", "replace").decode())):
                assert kind(answer) in ("HTTP_DISALLOWED_HOST", "INVALID_INPUT", "INPUT_SCHEMA_INVALID"), url
