"""One principal cannot take all watches of a hub."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest

from toolhub_service.domain.call import Principal
from toolhub_service.transport.interceptors.admission import WatchSharesLayer
from toolhub_service.transport.rpc import CALLER, HOOKS, Caller, Method
from toolhub_service.transport.status import RpcFailure

WATCH = Method("/toolhub.v1.JobService/WatchJob", "toolhub.v1.JobService", "WatchJob", "server_stream")
HEALTH = Method("/grpc.health.v1.Health/Watch", "grpc.health.v1.Health", "WatchJob", "server_stream")
CALL = Method("/toolhub.v1.JobService/GetJob", "toolhub.v1.JobService", "GetJob", "unary")
NO_CONTEXT: Any = None


def entered(layer: WatchSharesLayer, name: str, method: Method = WATCH) -> str:
    def enter() -> str:
        CALLER.set(Caller(Principal(name)))
        return layer.enter(method, NO_CONTEXT)

    return copy_context().run(enter)


def refusal(layer: WatchSharesLayer, name: str) -> RpcFailure | None:
    try:
        entered(layer, name)
    except RpcFailure as refused:
        return refused
    return None


def filled(layer: WatchSharesLayer, name: str) -> int:
    """How many watches the principal gets."""
    count = 0
    while (refused := refusal(layer, name)) is None and count < 1_000:
        count += 1
    assert refused is not None, "there was no bound"
    assert (refused.reason.name, refused.metadata["yours"]) == ("WATCH_SHARE_TAKEN", str(count))
    return count


def test_a_principal_that_is_alone_gets_half() -> None:
    assert filled(WatchSharesLayer(100), "greedy") == 50


def test_each_who_takes_all_it_can_leaves_half_of_what_was_left() -> None:
    layer = WatchSharesLayer(64)
    assert [filled(layer, f"greedy-{number}") for number in range(5)] == [32, 16, 8, 4, 2]
    entered(layer, "modest")


def test_share_is_free_again_when_watches_end() -> None:
    layer = WatchSharesLayer(4)
    assert filled(layer, "greedy") == 2
    layer.leave(WATCH, "greedy", NO_CONTEXT, None)
    entered(layer, "greedy")
    with pytest.raises(RpcFailure):
        entered(layer, "greedy")
    for _ in range(2):
        layer.leave(WATCH, "greedy", NO_CONTEXT, RuntimeError())
    assert filled(layer, "other") == 2


@pytest.mark.parametrize("method", [HEALTH, CALL])
def test_other_streams_are_not_counted_as_watches(method: Method) -> None:
    layer = WatchSharesLayer(1)
    assert not [hook for hook in HOOKS if layer.concerns(hook, method)]
    assert [hook for hook in HOOKS if layer.concerns(hook, WATCH)] == ["enter", "leave"]


def test_hub_with_room_for_one_lets_one_in() -> None:
    layer = WatchSharesLayer(1)
    entered(layer, "first")
    with pytest.raises(RpcFailure):
        entered(layer, "second")
