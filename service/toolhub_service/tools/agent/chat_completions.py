"""One answer of a model behind an OpenAI-compatible endpoint: streaming chat completions with tool calls.

The operator configures the endpoint, but its answers are untrusted: bytes, lines, deltas, tool calls and time are
limited, and anything that is not a chat completion is UPSTREAM_ERROR. A request changes nothing, so it is repeated
after a transient failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.guards.headers import check_request_headers
from toolhub_service.guards.urls import DEFAULT_PORTS, parse_url

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Of one streamed answer, including all framing."""
LINE_BYTES: Final = 1024 * 1024
TEXT_CHARS: Final = 256 * 1024
"""Of the text of one answer."""
TOOL_CALLS_MAX: Final = 32
"""In one answer."""
ARGUMENTS_CHARS: Final = 256 * 1024
"""Of all tool calls of one answer."""
ATTEMPTS_MAX: Final = 3
_PASSING: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0
_NAME_CHARS: Final = 256
# The operator has named the host, and is responsible for the addresses of that name.
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


class Endpoint(msgspec.Struct, frozen=True):
    """A configured endpoint of a model."""

    url: str
    """Base URL, such as https://api.example.com/v1."""
    model: str
    key: Callable[[], str]
    """Returns the bearer token, known to the redactor; empty: none. Raises ValueError, which says why it is not
    available."""
    max_tokens: int = 4_096
    stall_s: float = 60.0
    """Seconds for which it may send nothing."""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Further members of each request, such as temperature."""

    def egress(self) -> tuple[EgressRule, ...]:
        """Return rules that allow this host only. Raises ToolFailure INVALID_INPUT for an invalid URL."""
        url = parse_url(self.url)
        ports = frozenset() if url.port == DEFAULT_PORTS[url.scheme] else frozenset({url.port})
        return (EgressRule((url.host,), frozenset({url.scheme}), ports, frozenset({"POST"}), _ANYWHERE),)


@dataclass(slots=True)
class AskedTool:
    """A tool call of an answer, as the model wrote it."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Answer:
    pieces: list[str] = field(default_factory=list)
    calls: list[AskedTool] = field(default_factory=list)
    finish: str = ""
    """`stop`, `tool_calls`, `length`, `content_filter` or another value of the endpoint; empty: none was sent."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text_chars: int = 0
    arguments_chars: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


async def complete(
    client: EgressClient,
    endpoint: Endpoint,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject],
    deadline_s: float,
) -> Answer:
    """Return the model's next answer. Raises ToolFailure NETWORK_ERROR, UPSTREAM_ERROR, TOOL_UNAVAILABLE; HTTP_TIMEOUT
    at the deadline."""
    request = _request(endpoint, messages, tools)
    attempt = 1
    while True:
        try:
            async with client.open(request, endpoint.egress(), deadline_s=deadline_s) as response:
                return await _read_answer(response, endpoint.stall_s)
        except ToolFailure as failure:
            pause_s = _pause_s(failure.error, attempt, deadline_s)
            if pause_s is None:
                raise
            await asyncio.sleep(pause_s)
            attempt += 1


def _pause_s(error: ToolError, attempt: int, deadline_s: float) -> float | None:
    status = 0 if error.upstream is None else error.upstream.status
    passes = error.kind is ErrorKind.NETWORK_ERROR or status in _PASSING
    # Retry-After is limited: an endpoint that asks for an hour must not delay the job that long.
    pause_s = min(max(error.retry_after_s or 0.0, _PAUSE_S * 2 ** (attempt - 1)), _PAUSE_MAX_S)
    has_time = asyncio.get_running_loop().time() + pause_s < deadline_s
    return pause_s if passes and has_time and attempt < ATTEMPTS_MAX else None


def _request(endpoint: Endpoint, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> HttpRequest:
    body: dict[str, Any] = {
        # First, so that no parameter can replace the model, the messages or the limits below.
        **endpoint.parameters,
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": endpoint.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = tools
    try:
        key = endpoint.key()
    except ValueError as missing:
        message = "The key of the agent's endpoint cannot be read. An operator must correct `agents` of the settings."
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason=str(missing)) from missing
    fields = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    url = f"{endpoint.url.rstrip('/')}/chat/completions"
    headers = check_request_headers(fields)
    accept = "text/event-stream, application/json"
    return HttpRequest(url, "POST", headers, msgspec.json.encode(body), accept=accept, only_reads=True)


async def _read_answer(response: HttpResponse, stall_s: float) -> Answer:
    if response.status != 200:
        await response.beginning(LINE_BYTES)
        raise _status_failure(response)
    answer = Answer()
    is_over = False
    is_stream = "json" not in response.header(b"content-type")
    async for text in _events(response, stall_s) if is_stream else _whole(response, stall_s):
        if text == b"[DONE]":
            is_over = True
            break
        _take(answer, _decode_chunk(text))
    # Endpoints end a stream by `[DONE]`, by a reason, or by both.
    if not (is_over or answer.finish):
        message = "The model's endpoint closed the connection in the middle of an answer. Try again later."
        raise refuse(ErrorKind.NETWORK_ERROR, message)
    # A skipped index leaves an empty call behind.
    answer.calls = [call for call in answer.calls if call.name or call.pieces]
    return answer


async def _events(response: HttpResponse, stall_s: float) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event."""
    body = response.body(ANSWER_BYTES)
    unfinished = bytearray()
    while piece := await _next(body.next_piece(), stall_s):
        unfinished += piece
        # Only a piece with a line end is split: otherwise one long line in small pieces would be searched again and
        # again.
        lines: list[bytearray] = []
        if b"\n" in piece:
            *lines, unfinished = unfinished.split(b"\n")
        if len(unfinished) > LINE_BYTES:
            raise _not_a_completion("a line of more than 1 MiB")
        for line in lines:
            if line.startswith(b"data:"):
                yield bytes(line[5:].strip())
    if body.is_cut:
        raise _not_a_completion("an answer of more than 8 MiB")


async def _whole(response: HttpResponse, stall_s: float) -> AsyncIterator[bytes]:
    """Yield the answer of an endpoint that does not stream."""
    body = response.body(ANSWER_BYTES)
    pieces = []
    while piece := await _next(body.next_piece(), stall_s):
        pieces.append(piece)
    if body.is_cut:
        raise _not_a_completion("an answer of more than 8 MiB")
    yield b"".join(pieces)


async def _next(piece: Any, stall_s: float) -> bytes:
    clock = asyncio.timeout(stall_s)
    try:
        async with clock:
            data: bytes = await piece
            return data
    except TimeoutError:
        # The deadline of the whole call also ends it, without this endpoint being silent.
        if not clock.expired():
            raise
        message = f"The model's endpoint sent nothing for {stall_s:g} seconds. Try again later."
        raise refuse(ErrorKind.UPSTREAM_ERROR, message) from None


def _decode_chunk(text: bytes) -> _Chunk:
    try:
        chunk = _CHUNK.decode(text)
    except (msgspec.DecodeError, RecursionError) as broken:
        raise _not_a_completion("something else") from broken
    if chunk.error is not None:
        raise _not_a_completion("an error in the middle of an answer")
    return chunk


def _take(answer: Answer, chunk: _Chunk) -> None:
    if chunk.usage is not None:
        answer.prompt_tokens = max(0, chunk.usage.prompt_tokens or 0)
        answer.completion_tokens = max(0, chunk.usage.completion_tokens or 0)
    # One answer is requested; further choices are ignored.
    for choice in chunk.choices[:1]:
        answer.finish = choice.finish_reason or answer.finish
        message = choice.delta or choice.message
        if message is not None:
            answer.pieces.append(message.content or "")
            answer.text_chars += len(message.content or "")
            for place, delta in enumerate(message.tool_calls or ()):
                _add(answer, delta, place if choice.delta is None else None)
    if answer.text_chars > TEXT_CHARS:
        raise _not_a_completion("a text of more than 256 Ki characters")
    if answer.arguments_chars > ARGUMENTS_CHARS:
        raise _not_a_completion("tool calls with arguments of more than 256 Ki characters")


def _add(answer: Answer, delta: _ToolCall, place: int | None) -> None:
    """Add the pieces of a tool call, which belong together by index; some endpoints omit it and send whole calls."""
    index = delta.index if delta.index is not None else place
    if index is None:
        is_next = not answer.calls or bool(delta.id and delta.id != answer.calls[-1].id)
        index = len(answer.calls) if is_next else len(answer.calls) - 1
    if not 0 <= index < TOOL_CALLS_MAX:
        raise _not_a_completion(f"more than {TOOL_CALLS_MAX} tool calls in one answer")
    while len(answer.calls) <= index:
        answer.calls.append(AskedTool())
    call = answer.calls[index]
    function = delta.function or _Function()
    call.id = (call.id or delta.id or "")[:_NAME_CHARS]
    call.name = (call.name + (function.name or ""))[:_NAME_CHARS]
    call.pieces.append(function.arguments or "")
    answer.arguments_chars += len(function.arguments or "")


def _status_failure(response: HttpResponse) -> ToolFailure:
    status = response.status
    retry_after = response.header(b"retry-after")
    passes = status in _PASSING
    advice = "Try again later." if passes else "An operator must check its URL, model and key."
    return refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"The model's endpoint answered with status {status}. {advice}",
        retryable=passes,
        retry_after_s=float(retry_after) if passes and retry_after.isdecimal() else None,
        upstream=Upstream(status),
    )


def _not_a_completion(what: str) -> ToolFailure:
    message = f"The model's endpoint sent {what}, which is no chat completion. An operator must check it."
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False)
