"""What an HTTP status in place of a JSON-RPC answer says about the call of a tool."""

from __future__ import annotations

import pytest

from tests.unit.adapters.mcp.both_clients import CLIENT_KINDS, answered
from tests.unit.adapters.mcp.test_fast_client import failure_of
from tests.unit.adapters.mcp.test_http import http
from toolhub_service.domain.errors import ErrorKind


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [408, 499, 500, 502, 504, 520, 522, 524])
async def test_a_gateway_that_gave_up_leaves_the_outcome_unknown(status: int) -> None:
    for way in CLIENT_KINDS:
        async with answered(lambda _: http(b"error code", status=f"{status} Gone", kind="text/plain"), way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False), way


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [429, 503, 521, 523, 525, 526, 530])
async def test_a_server_that_was_not_reached_or_is_busy_has_run_nothing(status: int) -> None:
    for way in CLIENT_KINDS:
        async with answered(lambda _: http(b"error code", status=f"{status} Away", kind="text/plain"), way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True), way
            assert "It has not run." in error.message


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [400, 404, 405, 413, 422])
async def test_a_refusal_by_status_alone_is_no_broken_connection_and_its_text_is_kept(status: int) -> None:
    reply = http(b"missing required field owner", status=f"{status} No", kind="text/plain")
    for way in CLIENT_KINDS:
        async with answered(lambda _: reply, way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False), way
            assert "missing required field owner" in error.message
            assert error.upstream is not None
            assert error.upstream.status == status
