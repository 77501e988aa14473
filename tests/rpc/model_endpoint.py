"""An OpenAI-compatible endpoint on loopback with scripted answers, in the real streaming format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "sk-model-4711-abcdefghijk"

Turn = Callable[[web.Request], Any]


@dataclass
class ModelEndpoint:
    turns: list[Turn] = field(default_factory=list)
    """What it answers, one after the other; the last again and again."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    port: int = 0
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client leaves an answer that stalls."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *turns: Turn) -> None:
        self.turns[:] = turns
        self.asked.clear()

    @property
    def tools(self) -> list[str]:
        """Exported names that the last request has shown."""
        return [tool["function"]["name"] for tool in self.asked[-1].get("tools", [])]

    def tool_outputs(self) -> list[dict[str, Any]]:
        """What tools have answered, as in the last request."""
        contents = [message["content"] for message in self.asked[-1]["messages"] if message["role"] == "tool"]
        return [json.loads(content) if content.endswith("}") else {"cut": content} for content in contents]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(json.loads(await request.read()))
        self.keys.append(request.headers.get("Authorization", ""))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        answered = await turn(request)
        assert isinstance(answered, web.StreamResponse)
        return answered

    def stall(self, *pieces: bytes) -> Turn:
        async def turn(request: web.Request) -> web.StreamResponse:
            response = await _begun(request)
            for piece in pieces:
                await response.write(piece)
            self.stalled.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.gone.set()
            return response

        return turn


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def events(*chunks: Any, done: bool = True) -> bytes:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (": a comment\n\n" + text + ("data: [DONE]\n\n" if done else "")).encode()


def streamed(text: str = "", calls: Sequence[tuple[str, Any]] = (), *, finish: str = "") -> bytes:
    """An answer in pieces: text by words, arguments by five characters, as endpoints send them."""
    chunks = [_chunk({"role": "assistant", "content": ""})]
    chunks += [_chunk({"content": word}) for word in text.split(" ") for word in (word, " ")][: 2 * len(text) or 0]
    for index, (name, args) in enumerate(calls):
        written = args if isinstance(args, str) else json.dumps(args)
        head = {"index": index, "id": f"id{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        chunks.append(_chunk({"tool_calls": [head]}))
        for at in range(0, len(written), 5):
            piece = {"index": index, "function": {"arguments": written[at : at + 5]}}
            chunks.append(_chunk({"tool_calls": [piece]}))
    chunks.append(_chunk({}, finish or ("tool_calls" if calls else "stop")))
    usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}}
    return events(*chunks, usage)


async def _begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def sends(*pieces: bytes, cut: bool = False) -> Turn:
    async def turn(request: web.Request) -> web.StreamResponse:
        response = await _begun(request)
        for piece in pieces:
            await response.write(piece)
        if cut:
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write_eof()
        return response

    return turn


def answer_text(text: str, **more: Any) -> Turn:
    return sends(streamed(text, **more))


def ask(*calls: tuple[str, Any]) -> Turn:
    return sends(streamed("", calls))


def status(code: int, headers: Mapping[str, str] | None = None) -> Turn:
    async def turn(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"no: {KEY}"}}, status=code, headers=headers)

    return turn


def whole(message: Mapping[str, Any]) -> Turn:
    """An endpoint that does not stream."""

    async def turn(request: web.Request) -> web.StreamResponse:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice]})

    return turn


@asynccontextmanager
async def model_endpoint() -> AsyncIterator[ModelEndpoint]:
    endpoint = ModelEndpoint()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.port = runner.addresses[0][1]
    try:
        yield endpoint
    finally:
        await runner.cleanup()
