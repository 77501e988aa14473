"""Subscriptions of clients to resources of sources, in any protocol version.

Each is a call of the source's tool for it, under the caller's own rights, and its notifications reach only this client:
two clients may mean two sources by one URI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mcp.server.subscriptions import ListenHandler, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, SubscriptionsListenRequestParams, SubscriptionsListenResult

from toolhub_service.domain.tool import Primitive
from toolhub_service.mcp_server.changes import Changes, Watch
from toolhub_service.mcp_server.convert_calls import ARTIFACT_URI
from toolhub_service.mcp_server.primitives.source_primitives import Primitives, Requester, protocol_error
from toolhub_service.mcp_server.primitives.source_resources import SourceResources, no_resource

WATCHES_MAX: Final = 100
"""Most resources that one session, or one stream, watches."""
STREAMS_MAX: Final = 1_024


class Subscriptions:
    def __init__(self, primitives: Primitives, resources: SourceResources, changes: Changes) -> None:
        self._primitives = primitives
        self._resources = resources
        self._changes = changes
        self._open: set[ListenHandler] = set()

    def close(self) -> None:
        for handler in tuple(self._open):
            handler.close()

    async def subscribe(self, requester: Requester, uri: str) -> None:
        """Subscribe in the older protocol.

        Raises the same MCPError for a missing resource and one that policy hides.
        """
        watches = self._changes.watches_of(requester.session_id)
        if uri in watches or uri.startswith(ARTIFACT_URI):  # which never change
            return
        if len(watches) >= WATCHES_MAX:
            raise MCPError(INVALID_PARAMS, f"A session has at most {WATCHES_MAX} subscriptions. End one first.")
        watches[uri] = await self._authorize_watch(requester, uri)

    def unsubscribe(self, requester: Requester, uri: str) -> None:
        self._changes.watches_of(requester.session_id).pop(uri, None)

    async def listen(self, requester: Requester, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serve the stream of the newer protocol.

        Of the resources that it requests, only granted ones are acknowledged.
        """
        if len(self._open) >= STREAMS_MAX:
            raise MCPError(INTERNAL_ERROR, "Too many clients listen. Try again later.")
        watches: list[Watch] = []
        for uri in list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[:WATCHES_MAX]:
            # Resources that a client may not watch are left out; the answer lists the watched ones.
            with suppress(MCPError):
                watches.append(await self._authorize_watch(requester, uri))
        asked = params.notifications.model_copy(update={"resource_subscriptions": [each.shown for each in watches]})
        handler = ListenHandler(_Stream(self._changes, watches))
        self._open.add(handler)
        try:
            return await handler(requester.context, params.model_copy(update={"notifications": asked}))
        finally:
            self._open.discard(handler)

    async def _authorize_watch(self, requester: Requester, uri: str) -> Watch:
        source, own = await self._resources.route(requester, uri)
        reading = self._primitives.of_source(Primitive.RESOURCE_READ, source)
        if reading is None or not own:
            raise no_resource(uri)
        spec = self._primitives.of_source(Primitive.RESOURCE_SUBSCRIPTION, source)
        may_read = not self._primitives.is_hidden(requester.principal, reading)
        refusal = _no_updates(uri) if may_read else no_resource(uri)
        may_subscribe = spec is not None and not self._primitives.is_hidden(requester.principal, spec)
        if spec is None or (may_subscribe and not may_read):
            raise refusal
        answer = await self._primitives.call(requester, spec, {"uri": own})
        if answer.error is not None:
            raise protocol_error(answer.error) if may_subscribe else refusal
        return Watch(source, own, uri, requester.principal, spec.name)


def _no_updates(uri: str) -> MCPError:
    return MCPError(INVALID_PARAMS, "Its source tells of no changes of resources. Read it again.", {"uri": uri})


class _Stream:
    """The notifications of one stream, in the form that the SDK's handler reads."""

    def __init__(self, changes: Changes, watches: Sequence[Watch]) -> None:
        self._changes = changes
        self._watches = watches

    async def publish(self, event: ServerEvent) -> None:
        await self._changes.bus.publish(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        return self._changes.subscribe(self._watches, listener)
