"""A server that asks without end is given up, and one that asks often is not."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from toolhub_service.adapters.mcp.transports.inbox import (
    FLOODED,
    UNANSWERED_MAX,
    BoundedInbox,
    BoundedOutbox,
    PeerRequests,
)


def ping(request_id: int | str) -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method="ping")


def pong(request_id: int | str) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result={})


def cancelled(request_id: Any) -> JSONRPCNotification:
    params = {"requestId": request_id}
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)


@pytest.mark.parametrize("ids", [range(10_000), [1] * 10_000, [f"p-{at % 3}" for at in range(10_000)]])
def test_a_server_whose_requests_pile_up_is_given_up_once(ids: Any) -> None:
    given_up: list[str] = []
    requests = PeerRequests(given_up.append)
    for request_id in ids:
        requests.note_incoming(ping(request_id))
    assert given_up == [FLOODED]


def test_a_server_whose_requests_are_answered_or_withdrawn_may_ask_for_ever() -> None:
    given_up: list[str] = []
    requests = PeerRequests(given_up.append)
    for number in range(10 * UNANSWERED_MAX):
        requests.note_incoming(ping(number))
        if number % 2:
            requests.note_outgoing(pong(number))
        else:
            requests.note_incoming(cancelled(number))
    for odd in (None, [1], {"a": 1}, 999_999, "never"):
        requests.note_incoming(cancelled(odd))
    assert (given_up, requests.unanswered) == ([], 0)


async def test_what_a_flooding_server_still_asks_is_dropped_and_its_answers_are_not() -> None:
    send, receive = anyio.create_memory_object_stream[SessionMessage](UNANSWERED_MAX + 10)
    requests = PeerRequests(lambda _: None)
    inbox = BoundedInbox(receive, requests)
    for number in range(UNANSWERED_MAX + 5):
        await send.send(SessionMessage(ping(number)))
    await send.send(SessionMessage(pong("answer")))
    taken: list[Any] = []
    while not isinstance(taken[-1] if taken else None, JSONRPCResponse):
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        taken.append(item.message)
    assert len(taken) == UNANSWERED_MAX + 1
    await inbox.aclose()
    send.close()


async def test_the_hubs_answers_are_counted_when_they_are_written() -> None:
    send, receive = anyio.create_memory_object_stream[SessionMessage](10)
    requests = PeerRequests(lambda _: None)
    requests.note_incoming(ping(1))
    outbox = BoundedOutbox(send, requests)
    await outbox.send(SessionMessage(pong(1)))
    assert requests.unanswered == 0
    await outbox.aclose()
    receive.close()
