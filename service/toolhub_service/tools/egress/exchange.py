"""One request and its response on a pooled connection, from taking a place to giving it back, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpcore

from toolhub_service.tools.egress.breakage import WIRE_ERRORS, WireError, wire_error
from toolhub_service.tools.egress.message_stream import MessageStream
from toolhub_service.tools.egress.pools import Pool, Pools


class Exchange:
    """Holds a place and an entry of a pool until it is closed."""

    def __init__(self, pools: Pools, pool: Pool, places: asyncio.Semaphore) -> None:
        self._pools = pools
        self._pool = pool
        self._places = places
        self._answer: httpcore.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._is_complete = False
        self._is_closed = False

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """The head of the response. Raises one of `WIRE_ERRORS`, WireError or ToolFailure."""
        self._answer = await self._pool.connections.handle_async_request(request)
        self._chunks = aiter(self._answer.aiter_stream())
        return self._answer

    async def next_chunk(self) -> bytes:
        """The next bytes of the body as they were sent; empty at its end. Raises WireError."""
        if self._chunks is None:
            return b""
        try:
            async for chunk in self._chunks:
                if chunk:
                    return chunk
        except WIRE_ERRORS as error:
            self._chunks = None
            raise wire_error(error) from None
        except BaseException:
            self._chunks = None
            raise
        self._chunks = None
        self._is_complete = True
        return b""

    async def aclose(self) -> None:
        """Keep the connection when the response has arrived whole and nothing else with it; else close it at once."""
        if self._is_closed:
            return
        self._is_closed = True
        cleanly = False
        try:
            if self._answer is not None:
                await self._finish(self._answer)
                cleanly = self._is_complete
        finally:
            self._places.release()
            self._pools.leave(self._pool, cleanly=cleanly)

    async def _finish(self, answer: httpcore.Response) -> None:
        stream = answer.extensions["network_stream"]
        try:
            if isinstance(stream, MessageStream):
                await self._read_what_has_arrived(stream)
        finally:
            await answer.aclose()

    async def _read_what_has_arrived(self, stream: MessageStream) -> None:
        stream.stop_waiting()
        try:
            while await self.next_chunk():
                continue
        except WireError:
            return  # what has not arrived is not waited for: the connection is closed instead
        await stream.look_for_more()
