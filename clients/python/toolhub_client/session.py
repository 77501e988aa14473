"""Many calls over one stream: each goes through the whole chain of the hub, and costs a third of an RPC of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

import grpc

from toolhub.v1 import tool_service_pb2
from toolhub_client.answer import Answer
from toolhub_client.channel import Connection
from toolhub_client.failures import hub_error, unavailable

if TYPE_CHECKING:
    from toolhub.v1.tool_service_pb2_grpc import ToolServiceAsyncStub
    from toolhub_client.context import CallOptions

MAX_IN_FLIGHT = 256
"""Calls that a hub takes from one session at a time; the next one waits here."""


class Session:
    """`async with hub.session() as session:`. Calls run at the same time; leaving waits for those in flight."""

    def __init__(
        self,
        connection: Connection,
        tools: ToolServiceAsyncStub,
        to_call: Callable[[str, Mapping[str, Any] | None, CallOptions], tool_service_pb2.SessionCall],
    ) -> None:
        self._connection = connection
        self._tools = tools
        self._to_call = to_call
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self._next = tool_service_pb2.InvokeSessionRequest()
        # Set when there is something in `_next`, or nothing will follow.
        self._wake = asyncio.Event()
        self._closing = False
        self._broken: Exception | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._connection.ready()
        self._reader = asyncio.create_task(self._read(self._tools.InvokeSession(self._messages())))
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._closing = True
        self._wake.set()
        if self._reader is not None:
            if kind is not None:
                self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def invoke(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Answer:
        """As `Hub.invoke`. Cancelling it, and the end of its `timeout`, cancel the call at the hub. Raises HubError
        when the stream broke: the call may have had its effect, and is not repeated."""
        if self._reader is None or self._closing:
            raise RuntimeError("a session is used inside its `async with`")
        call = self._to_call(tool, args, options)
        async with self._connection.within(options.get("timeout")), self._places:
            if self._broken is not None:
                raise self._broken
            call.call_id = f"c{next(self._numbers)}"
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._pending[call.call_id] = answer
            self._next.calls.append(call)
            self._wake.set()
            try:
                return await answer
            except asyncio.CancelledError:
                self._next.cancel_call_ids.append(call.call_id)
                self._wake.set()
                raise

    async def _messages(self) -> AsyncGenerator[tool_service_pb2.InvokeSessionRequest, None]:
        """What has gathered while the message before was sent goes out in one."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._next.calls or self._next.cancel_call_ids:
                message, self._next = self._next, tool_service_pb2.InvokeSessionRequest()
                yield message
            elif self._closing:
                return

    async def _read(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        why: Exception = unavailable(self._connection.address, "The hub ended the session before it had answered.")
        try:
            async for response in call:
                for event in response.events:
                    if event.WhichOneof("event") == "result":
                        answer = self._pending.pop(event.call_id, None)
                        if answer is not None and not answer.done():
                            answer.set_result(Answer(event.result))
        except grpc.aio.AioRpcError as error:
            why = hub_error(error, self._connection.address)
        finally:
            call.cancel()
            self._broken = why
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(why)
            self._pending.clear()
