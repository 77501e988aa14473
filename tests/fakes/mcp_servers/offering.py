"""A server by hand that offers prompts, resources and completion besides its tools."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.mcp_servers.scripted import Refusal, Script, Send, text

GREET: dict[str, Any] = {
    "name": "greet",
    "title": "Greeting",
    "description": "Greet somebody.",
    "arguments": [{"name": "who", "description": "Whom.", "required": True}, {"name": "how"}],
}


def text_content(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


def resource(uri: str, **more: Any) -> dict[str, Any]:
    return {"uri": uri, "name": uri.rpartition("/")[2], **more}


@dataclass
class Offering(Script):
    prompts: list[dict[str, Any]] = field(default_factory=lambda: [GREET])
    listed: list[dict[str, Any]] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[str, str | bytes] = field(default_factory=dict)
    """By URI."""
    answer_prompt: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    subscribed: list[str] = field(default_factory=list)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answering: Any = None
    _streams: list[tuple[dict[str, Any], asyncio.Queue[tuple[str, dict[str, Any]]]]] = field(default_factory=list)

    def _capabilities(self) -> dict[str, Any]:
        changes = {"listChanged": True}
        offered = {"prompts": changes, "resources": {**changes, "subscribe": True}, "completions": {}}
        return {**super()._capabilities(), **offered}

    async def _result(self, method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
        self.requests.append((method, params))
        cached = {"ttlMs": 0, "cacheScope": "private"}
        at = int(params.get("cursor", "0"))
        if method == "subscriptions/listen":
            return await self._listened(params, send)
        if method == "resources/subscribe":
            self.subscribed.append(params["uri"])
            return {}
        if method == "prompts/list":
            more = {"nextCursor": str(at + 2)} if at + 2 < len(self.prompts) else {}
            return {"prompts": self.prompts[at : at + 2], **more, **cached}
        if method == "prompts/get":
            if self.answer_prompt is not None:
                return self.answer_prompt(params)
            return text_content(f"{params['name']}: {params.get('arguments')}")
        if method == "resources/list":
            return {"resources": self.listed, **cached}
        if method == "resources/templates/list":
            return {"resourceTemplates": self.templates, **cached}
        if method == "resources/read":
            return {"contents": [self._contents(params["uri"])], **cached}
        if method == "completion/complete":
            return {"completion": {"values": [f"{params['argument']['value']}nn"], "total": 1, "hasMore": False}}
        return await super()._result(method, params, send)

    async def _listened(self, params: dict[str, Any], send: Send) -> dict[str, Any]:
        """A stream of 2026-07-28, which sends what was subscribed to until it is closed."""
        asked = params["notifications"]
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": self.answering}}
        ack = {"notifications": asked, **meta}
        news: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._streams.append((asked, news))
        self.subscribed += asked.get("resourceSubscriptions", [])
        await send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": ack})
        while True:
            method, extra = await news.get()
            await send({"jsonrpc": "2.0", "method": method, "params": {**extra, **meta}})

    def notify(self, kind: str, uri: str = "") -> None:
        """`kind`: as a subscription filter names it."""
        for asked, news in self._streams:
            if kind == "resourceSubscriptions" and uri in asked.get(kind, ()):
                news.put_nowait(("notifications/resources/updated", {"uri": uri}))
            elif kind != "resourceSubscriptions" and asked.get(kind):
                news.put_nowait((f"notifications/{kind.removesuffix('ListChanged')}/list_changed", {}))

    async def answer(self, message: dict[str, Any], send: Send) -> dict[str, Any]:
        self.answering = message["id"]
        return await super().answer(message, send)

    async def _tool_touch(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        """Notifies of a change on the stream (2025-11-25)."""
        notification = {"jsonrpc": "2.0", "method": f"notifications/{args['method']}", "params": args.get("params", {})}
        await send(notification)
        return text("touched")

    def _contents(self, uri: str) -> dict[str, Any]:
        held = self.contents.get(uri)
        if held is None:
            raise Refusal(-32602 if self.generation == "modern" else -32002, f"no such resource: {uri}")
        if isinstance(held, bytes):
            return {"uri": uri, "mimeType": "image/png", "blob": base64.b64encode(held).decode()}
        return {"uri": uri, "mimeType": "text/plain", "text": held}
