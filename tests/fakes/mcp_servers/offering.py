"""A server by hand that offers prompts, resources and completion besides its tools."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.mcp_servers.scripted import Refusal, Script, Send

GREET: dict[str, Any] = {
    "name": "greet",
    "title": "Greeting",
    "description": "Greet somebody.",
    "arguments": [{"name": "who", "description": "Whom.", "required": True}, {"name": "how"}],
}


def said(text: str) -> dict[str, Any]:
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

    def _capabilities(self) -> dict[str, Any]:
        changes = {"listChanged": True}
        offered = {"prompts": changes, "resources": {**changes, "subscribe": True}, "completions": {}}
        return {**super()._capabilities(), **offered}

    async def _result(self, method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
        self.requests.append((method, params))
        cached = {"ttlMs": 0, "cacheScope": "private"}
        at = int(params.get("cursor", "0"))
        if method == "prompts/list":
            more = {"nextCursor": str(at + 2)} if at + 2 < len(self.prompts) else {}
            return {"prompts": self.prompts[at : at + 2], **more, **cached}
        if method == "prompts/get":
            if self.answer_prompt is not None:
                return self.answer_prompt(params)
            return said(f"{params['name']}: {params.get('arguments')}")
        if method == "resources/list":
            return {"resources": self.listed, **cached}
        if method == "resources/templates/list":
            return {"resourceTemplates": self.templates, **cached}
        if method == "resources/read":
            return {"contents": [self._contents(params["uri"])], **cached}
        if method == "completion/complete":
            return {"completion": {"values": [f"{params['argument']['value']}nn"], "total": 1, "hasMore": False}}
        return await super()._result(method, params, send)

    def _contents(self, uri: str) -> dict[str, Any]:
        held = self.contents.get(uri)
        if held is None:
            raise Refusal(-32602 if self.generation == "modern" else -32002, f"no such resource: {uri}")
        if isinstance(held, bytes):
            return {"uri": uri, "mimeType": "image/png", "blob": base64.b64encode(held).decode()}
        return {"uri": uri, "mimeType": "text/plain", "text": held}
