"""Servers that answer the handshake with something else than MCP: the reason quotes them and names the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.unit.adapters.mcp.links import at, linked, soon
from tests.unit.adapters.mcp.transports.test_http import Answer, elicitation_callback, handshake, http
from toolhub_service.adapters.mcp.connection import named_version
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms, sse_advice
from toolhub_service.domain.errors.failure import ToolFailure


async def reason_of(answer: Answer, path: str = "/mcp") -> str:
    """Why such a server is down."""
    async with elicitation_callback(answer) as url, linked(at(url.replace("/mcp", path))) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon())
        return str(failure.value.error.details["reason"])


def always(body: bytes, *headers: str, status: str = "200 OK", kind: str = "text/plain") -> Answer:
    return lambda *_: http(body, *headers, status=status, kind=kind)


def refusing(code: int, message: str) -> Answer:
    def answer(_verb: str, _headers: dict[str, str], body: bytes) -> bytes:
        error = {"code": code, "message": message}
        return http(orjson.dumps({"jsonrpc": "2.0", "id": orjson.loads(body).get("id"), "error": error}))

    return answer


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (
            always(b"<html><title>Welcome &amp; hello</title>", kind="text/html; charset=utf-8"),
            ["It answered text/html, not MCP: check `url`.", "It says: Welcome & hello"],
        ),
        (always(b"404 page not found", status="404 No"), ["HTTP 404: there is nothing at this path: check `url`."]),
        (always(b"", status="405 No"), ["HTTP 405: this path takes no POST", "check `url`"]),
        (always(b"tenant missing", status="400 No"), ["refused the handshake with HTTP 400. It says: tenant missing"]),
        (always(b"back at ten", status="503 Later"), ["It answered HTTP 503: back at ten"]),
        (
            always(b"", "location: /login?next=secret", status="302 Found"),
            ["HTTP 302: write the address", "It redirects to /login"],
        ),
        (refusing(-32603, "the licence has expired"), ["JSON-RPC error -32603", "It says: the licence has expired"]),
    ],
)
async def test_a_refused_handshake_is_told_in_the_servers_words_with_the_remedy(
    answer: Answer, parts: list[str]
) -> None:
    reason = await reason_of(answer)
    assert [part for part in parts if part not in reason] == []
    assert "secret" not in reason


async def test_an_address_of_the_transport_of_2024_is_told_as_such_with_the_one_to_try() -> None:
    reason = await reason_of(always(b"Method Not Allowed", status="405 No"), "/tools/sse")
    assert reason.startswith("HTTP 405: ")
    assert "SSE transport of 2024" in reason
    assert reason.endswith("/tools/mcp")


@pytest.mark.parametrize(
    ("url", "tried"),
    [
        ("https://key@a.example/sse", "https://a.example/mcp"),
        ("https://a.example/v1/sse/?key=x", "https://a.example/v1/mcp"),
        ("https://a.example/mcp", ""),
        ("https://a.example/sse/mcp", ""),
    ],
)
def test_only_addresses_that_end_in_sse_look_like_the_transport_of_2024(url: str, tried: str) -> None:
    advice = sse_advice(url)
    assert advice.endswith(tried)
    assert bool(advice) is bool(tried)
    assert "key" not in advice


def picky(refuse: Callable[[Any], bytes], only: str = "2025-06-18") -> Answer:
    """A server that speaks one version, and refuses the handshake of any other."""

    def answer(_verb: str, _headers: dict[str, str], body: bytes) -> bytes:
        message = orjson.loads(body)
        if message["method"] == "initialize" and message["params"]["protocolVersion"] != only:
            return refuse(message)
        return handshake(body, lambda _: b"").replace(b"2025-11-25", only.encode())

    return answer


def unsupported(message: Any) -> bytes:
    error = {
        "code": -32602,
        "message": "Unsupported protocol version",
        "data": {"supported": ["2024-11-05", "2025-06-18"]},
    }
    return http(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), status="400 Bad Request")


@pytest.mark.parametrize(
    "refuse",
    [
        unsupported,
        lambda _: http(b"Unsupported 2025-11-25 (versions: 2024-11-05,2025-06-18)", status="400 No", kind="text/plain"),
    ],
)
@pytest.mark.parametrize("protocol", ["auto", "2025-11-25"])
async def test_the_newest_version_that_a_refusal_names_is_tried(refuse: Callable[[Any], bytes], protocol: Any) -> None:
    async with elicitation_callback(picky(refuse)) as url, linked(at(url, protocol=protocol)) as link:
        assert (await link.session(soon())).protocol == "2025-06-18"


async def test_versions_that_the_hub_does_not_speak_are_told_in_the_servers_words() -> None:
    refuse = http(b"Unsupported 2025-11-25 (versions: 2023-01-01)", status="400 No", kind="text/plain")
    assert "versions: 2023-01-01" in await reason_of(picky(lambda _: refuse, "2023-01-01"))


def test_of_versions_in_a_text_only_older_known_ones_count() -> None:
    assert named_version("2025-11-25 is not among 2024-11-05, 2025-03-26 and 2031-01-01") == "2025-03-26"
    assert named_version("2025-11-25 and 2026-07-28 and 12025-06-18") == ""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("~/bin/server", "`~` is not expanded in `command`: write the absolute path."),
        ("python3 /srv/server.py", "write `command: python3`, and the rest into `args`."),
        ("/no/such/server", "was not found where `command` says"),
        ("no-such-server", "was not found on the hub's PATH"),
    ],
)
async def test_a_command_that_cannot_be_one_is_told_with_its_mistake(command: str, reason: str) -> None:
    async with linked(McpTerms("harness", StdioTerms(command))) as link:
        with pytest.raises(ToolFailure) as failure:
            await link.session(soon())
        assert reason in failure.value.error.message
