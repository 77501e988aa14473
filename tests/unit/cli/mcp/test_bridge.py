"""The bridge of `toolhub mcp --url` answers whatever its client sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolhub_service.cli.mcp.bridge import Bridge

DEEP = "[" * 100_000 + "]" * 100_000
CALL = '{"jsonrpc": "2.0", "id": %s, "method": "tools/call", "params": {"name": "a", "arguments": {"a": %s}}}'


@pytest.mark.parametrize(
    ("line", "answered"),
    [
        (CALL % (7, DEEP), 7),
        (CALL % ('"seven"', '{"a":' * 50_000 + "1" + "}" * 50_000), "seven"),
        ('{"method": "x", "params": ' + DEEP + "}", None),
        (DEEP, None),
    ],
    ids=["arrays", "objects", "notification", "no message"],
)
async def test_a_message_that_is_nested_too_deeply_is_answered(line: str, answered: Any) -> None:
    written: list[bytes] = []

    async def lines() -> AsyncIterator[bytes]:
        yield line.encode()

    await Bridge("http://127.0.0.1:1/mcp", lambda: "", written.append, True).run(lines())
    (answer,) = map(json.loads, written)
    assert answer["id"] == answered
    assert "nested too deeply" in answer["error"]["message"]
