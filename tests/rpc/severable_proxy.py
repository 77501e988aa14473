"""A wire to a server that a test can cut: what goes over it is forwarded until then, and after it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_AT_ONCE_BYTES = 65_536


class SeverableProxy:
    """To one address. Cut, its connections end and new ones are ended at once."""

    def __init__(self, url: str) -> None:
        self._far = urlsplit(url)
        self._near: asyncio.Server
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    @property
    def url(self) -> str:
        """The same server over this wire."""
        port = self._near.sockets[0].getsockname()[1]
        return self._far._replace(netloc=f"127.0.0.1:{port}").geturl()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def open(self) -> None:
        self._near = await asyncio.start_server(self._join, "127.0.0.1", 0)

    async def close(self) -> None:
        self.cut()
        self._near.close()
        await self._near.wait_closed()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._is_cut:
                return
            far_reader, far_writer = await asyncio.open_connection(self._far.hostname, self._far.port)
            self._open.add(far_writer)
            try:
                with suppress(OSError):
                    await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
            finally:
                self._open.discard(far_writer)
                far_writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_AT_ONCE_BYTES):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[SeverableProxy]:
    wire = SeverableProxy(url)
    await wire.open()
    try:
        yield wire
    finally:
        await wire.close()
