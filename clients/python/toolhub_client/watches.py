"""Streams that are opened again where they broke, across hubs that leave, are killed or are started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from toolhub_client.channel import pause_after
from toolhub_client.failures import hub_error

BROKEN = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)
"""How a watch ends that may be begun again: a hub that leaves, is killed or is overloaded, a connection that breaks."""


async def watch(
    open_stream: Callable[[], Any], what: str, *, attempts: int, ended: Callable[[int], bool] = lambda _: False
) -> AsyncGenerator[Any, None]:
    """The messages of stream after stream; `open_stream` begins one behind the last message seen.

    `ended` says whether a stream that the hub ended in order, after so many messages, was the last. Raises AioRpcError
    when the hub refuses, and once `attempts` in a row brought nothing, where the hub ended them ConnectionError.
    """
    failed = 0
    while True:
        call, came = open_stream(), 0
        broken: Exception = ConnectionError(f"the hub ends the watch of {what} too early")
        try:
            async for message in call:
                came += 1
                yield message
            if ended(came):
                return
        except grpc.aio.AioRpcError as error:
            if error.code() not in BROKEN:
                raise
            broken = error
        finally:
            call.cancel()
        failed = 1 if came else failed + 1
        if failed >= attempts:
            raise broken
        why = hub_error(broken) if isinstance(broken, grpc.aio.AioRpcError) else broken
        await asyncio.sleep(pause_after(failed, why))


async def resumed(rpc: Callable[[Any], Any], request: Any, what: str, *, attempts: int) -> AsyncGenerator[Any, None]:
    """As `watch`, where request and messages have a `resume_token`: each new stream resumes after the last token."""
    asked = type(request)()
    asked.CopyFrom(request)
    async with aclosing(watch(lambda: rpc(asked), what, attempts=attempts)) as messages:
        async for message in messages:
            asked.resume_token = message.resume_token or asked.resume_token
            yield message
