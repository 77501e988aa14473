"""Follows a server's changes of its lists on a `subscriptions/listen` stream (2026-07-28).

The stream is reopened when it breaks. A broken stream does not mean a broken connection (a proxy may cut idle streams),
so running calls are left alone. Changes may have been missed meanwhile, so each new stream counts as a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mcp import ClientSession, MCPError
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from toolhub_service.adapters.mcp.backoff import Backoff
from toolhub_service.adapters.mcp.link_state import Deps

_ACKNOWLEDGED_WITHIN_S = 10.0
_FIRST_WITHIN_S = 1.0  # how long a connection waits for its first stream before it is used without one


def announces_list_changes(session: ClientSession) -> bool:
    known = session.server_capabilities
    listing = (known.tools, known.prompts, known.resources) if known else ()
    return any(feature is not None and feature.list_changed is True for feature in listing)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


@asynccontextmanager
async def following_lists(session: ClientSession, deps: Deps) -> AsyncIterator[None]:
    """Listen while the context is active, in a separate task."""
    loop, backoff, is_open = asyncio.get_running_loop(), Backoff(deps.randomness), asyncio.Event()
    changed = deps.changed
    is_connected = False

    async def follow() -> None:
        subscription = listen(session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
        async with asyncio.timeout(_ACKNOWLEDGED_WITHIN_S):
            events = await subscription.__aenter__()
        try:
            is_open.set()
            if is_connected:  # a stream that opens later than the connection may have missed changes
                changed()
            async for event in events:
                if isinstance(event, ResourcesListChanged):
                    deps.resource_changed("")
                changed()
        finally:
            await subscription.__aexit__(None, None, None)

    async def follow_again_and_again() -> None:
        while True:
            began_s = loop.time()
            with suppress(MCPError, SubscriptionLost, TimeoutError):  # reopened, whatever the reason of the loss
                await follow()
            await asyncio.sleep(backoff.after_loss(loop.time() - began_s))

    task = asyncio.create_task(follow_again_and_again())
    try:
        with suppress(TimeoutError):  # a server that never acknowledges the stream is used all the same
            async with asyncio.timeout(_FIRST_WITHIN_S):
                await is_open.wait()
        is_connected = True
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def follow_resources(session: ClientSession, deps: Deps) -> None:
    """Keep one stream for all watched resources, reopened when another one is added. Runs until cancelled."""
    watched, backoff = deps.watched, Backoff(deps.randomness)

    async def follow(uris: tuple[str, ...]) -> None:
        with suppress(MCPError, SubscriptionLost, TimeoutError):  # whatever ended it, the loop below opens another
            async with listen(session, resource_subscriptions=uris) as events:
                for uri in uris:
                    if (asked := watched.uris.get(uri)) is not None:
                        asked.set()
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        deps.resource_changed(event.uri)

    while True:
        watched.changed.clear()
        uris, began_s = tuple(watched.uris), asyncio.get_running_loop().time()
        waiting = asyncio.create_task(watched.changed.wait())
        following = {asyncio.create_task(follow(uris))} if uris else set()
        try:
            await asyncio.wait({waiting, *following}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, *following):
                task.cancel()
            await asyncio.wait({waiting, *following})
        if not watched.changed.is_set():  # it was lost, and changes may have been missed meanwhile
            await asyncio.sleep(backoff.after_loss(asyncio.get_running_loop().time() - began_s))
            for uri in uris:
                deps.resource_changed(uri)
