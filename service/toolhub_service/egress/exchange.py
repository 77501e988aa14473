"""One request and its response on a pooled connection, whose place is taken and released exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpcore
import httpx

from toolhub_service.egress.breakage import WIRE_ERRORS, WireError, wire_error
from toolhub_service.egress.message_stream import MessageStream
from toolhub_service.egress.pools import Pool, Pools


class Exchange(httpx.AsyncByteStream):
    """Holds a place and an entry of a pool until it is closed. Iteration yields the response's body as it was sent."""

    def __init__(self, pools: Pools, pool: Pool, places: asyncio.Semaphore) -> None:
        self._pools = pools
        self._pool = pool
        self._places = places
        self._answer: httpcore.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._is_complete = False
        self._is_closed = False

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """Return the head of the response. Raises one of `WIRE_ERRORS`, WireError or ToolFailure."""
        self._answer = await self._pool.connections.handle_async_request(request)
        self._chunks = aiter(self._answer.aiter_stream())
        return self._answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._next_chunk():
            yield chunk

    async def _next_chunk(self) -> bytes:
        """Return the next bytes; empty at the end, and after a failure or a cancellation. Raises WireError."""
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            return b""
        try:
            async for chunk in chunks:
                if chunk:
                    self._chunks = chunks
                    return chunk
        except WIRE_ERRORS as error:
            raise wire_error(error) from None
        self._is_complete = True
        return b""

    async def aclose(self) -> None:
        """Keep the connection when exactly the whole response has arrived; otherwise close it at once."""
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
                stream.stop_waiting()
                # Missing data is not waited for: the connection is closed instead.
                with suppress(WireError):
                    while await self._next_chunk():
                        continue
                    await stream.check_for_excess()
        finally:
            await answer.aclose()
