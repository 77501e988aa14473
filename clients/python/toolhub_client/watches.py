"""Streams that are opened again where they broke, across hubs that leave, are killed or are started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from toolhub_client.outages import Outages

OnOutage = Callable[[float], object]
"""Called when a watch breaks, with the seconds until it is opened again."""


async def watch(
    open_stream: Callable[[], Any],
    what: str,
    *,
    attempts: int | None,
    on_outage: OnOutage | None = None,
    ended: Callable[[int], bool] = lambda _: False,
) -> AsyncGenerator[Any, None]:
    """The messages of stream after stream; `open_stream` begins one behind the last message seen.

    `ended` says whether a stream that the hub ended in order, after so many messages, was the last. Raises AioRpcError
    when the hub refuses, and once `attempts` in a row brought nothing, where the hub ended them ConnectionError.
    `attempts` None: never for that.
    """
    outages = Outages(attempts=attempts)
    while True:
        call, came = open_stream(), 0
        outages.open()
        broken: Exception = ConnectionError(f"the hub ends the watch of {what} too early")
        try:
            async for message in call:
                came += 1
                outages.receive()
                yield message
            if ended(came):
                return
        except grpc.aio.AioRpcError as error:
            broken = error
        finally:
            call.cancel()
        pause_s = outages.pause_s(broken)
        if on_outage is not None:
            on_outage(pause_s)
        await asyncio.sleep(pause_s)


async def resumed(
    rpc: Callable[[Any], Any],
    request: Any,
    what: str,
    *,
    attempts: int | None,
    on_outage: OnOutage | None = None,
) -> AsyncGenerator[Any, None]:
    """As `watch`, where request and messages have a `resume_token`: each new stream resumes after the last token."""
    asked = type(request)()
    asked.CopyFrom(request)
    messages = watch(lambda: rpc(asked), what, attempts=attempts, on_outage=on_outage)
    async with aclosing(messages):
        async for message in messages:
            asked.resume_token = message.resume_token or asked.resume_token
            yield message
