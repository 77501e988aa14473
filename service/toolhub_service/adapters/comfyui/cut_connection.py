"""A WebSocket that is cut as soon as it is to end: nobody waits for the other side to agree.

The library answers a message that is too long with a close frame, and then reads and drops whatever still comes until
the server closes its side: a hostile one never does.
"""

from __future__ import annotations

from websockets.asyncio.client import ClientConnection


class CutConnection(ClientConnection):
    def data_received(self, data: bytes) -> None:
        """Take what came; abort when that was the end."""
        super().data_received(data)
        if self.protocol.close_expected():
            self.transport.abort()
