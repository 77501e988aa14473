"""What every request passes: the record, the check of its origin, and what is to go wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web

from tests.fakes.comfyui.faults import How, Op
from tests.fakes.comfyui.record import RecordedRequest

if TYPE_CHECKING:
    from tests.fakes.comfyui.server import FakeComfy

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HTML = b"<!doctype html><title>ComfyUI</title><p>It works!</p>"
_OPS: list[tuple[str, str, Op]] = [
    ("POST", r"/prompt", Op.SUBMIT),
    ("GET", r"/queue", Op.QUEUE),
    ("POST", r"/queue", Op.DELETE),
    ("GET", r"/history(/.*)?", Op.HISTORY),
    ("GET", r"/jobs/[^/]+", Op.JOB),
    ("GET", r"/jobs", Op.JOBS),
    ("POST", r"/jobs(/[^/]+)?/cancel", Op.CANCEL),
    ("POST", r"/interrupt", Op.INTERRUPT),
    ("GET|HEAD", r"/view", Op.VIEW),
    ("POST", r"/upload/image", Op.UPLOAD),
    ("GET", r"/object_info(/.*)?", Op.CLASSES),
    ("GET", r"/system_stats", Op.STATS),
    ("GET", r"/features", Op.FEATURES),
    ("GET", r"/ws", Op.SOCKET),
]
_HIDDEN: dict[Op, Any] = {
    Op.HISTORY: {},
    Op.QUEUE: {"queue_running": [], "queue_pending": []},
    Op.JOBS: {"jobs": [], "pagination": {"offset": 0, "limit": None, "total": 0, "has_more": False}},
}


def op_of(method: str, path: str) -> Op:
    """Which kind of request it is."""
    plain = path.removeprefix("/api")
    matches = (op for methods, shape, op in _OPS if re.fullmatch(methods, method) and re.fullmatch(shape, plain))
    return next(matches, Op.ANY)


def recording(comfy: FakeComfy) -> Any:
    """Remember what was asked."""

    @web.middleware
    async def record(request: web.Request, handler: Next) -> web.StreamResponse:
        body = None
        if request.method == "POST" and not request.content_type.startswith("multipart/"):
            raw = await request.read()
            body = json.loads(raw) if raw.startswith((b"{", b"[")) and _is_json(raw) else None
        path = request.path.removeprefix("/api") if "/jobs" not in request.path else request.path
        op = op_of(request.method, request.path)
        comfy.asked.append(RecordedRequest(op, request.method, path, dict(request.query), dict(request.headers), body))
        comfy.pulse.beat()
        return await handler(request)

    return record


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True


@web.middleware
async def own_origin(request: web.Request, handler: Next) -> web.StreamResponse:
    """403 for a page of another host on loopback; any OPTIONS is answered with nothing."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
        return web.Response(status=403)
    if request.method == "OPTIONS":
        return web.Response()
    return await handler(request)


def guarded(comfy: FakeComfy) -> Any:
    """401 for whom a proxy before the server does not know."""

    @web.middleware
    async def guard(request: web.Request, handler: Next) -> web.StreamResponse:
        if comfy.users and request.headers.get("Authorization", "") not in comfy.users:
            return web.Response(status=401)
        return await handler(request)

    return guard


def faulty(comfy: FakeComfy) -> Any:
    """Let go wrong what the test said."""

    @web.middleware
    async def fault(request: web.Request, handler: Next) -> web.StreamResponse:
        op = op_of(request.method, request.path)
        how = comfy.faults.next(op)
        if how is None:
            return await handler(request)
        if how is How.HOLD:
            await _held(comfy)
            return await handler(request)
        if how is How.GATEWAY:
            return _of_gateway(comfy)
        if (undone := _undone(op, how)) is not None:
            return undone
        if how is How.DROP:
            return _hang_up(request)
        answer = await handler(request)
        if how is How.TWICE:
            await handler(request)
            return answer
        if how is How.GAVE_UP:
            return _of_gateway(comfy)
        return await _spoilt(comfy, request, how, answer)

    return fault


async def _held(comfy: FakeComfy) -> None:
    comfy.faults.held += 1
    comfy.pulse.beat()
    try:
        await comfy.faults.wait()
    finally:
        comfy.faults.held -= 1
        comfy.pulse.beat()


def _undone(op: Op, how: How) -> web.Response | None:
    if how is How.ERROR:
        return web.Response(status=500, text="500 Internal Server Error\n\nServer got itself in trouble")
    if how is How.FULL:
        return web.Response(status=413, text="Maximum request body size exceeded")
    if how is How.HIDE and op is Op.JOB:
        return web.json_response({"error": "Job not found"}, status=404)
    if how is How.HIDE:
        return web.json_response(_HIDDEN[op])
    if how is How.IGNORE:
        return web.json_response({"cancelled": False}) if op is Op.CANCEL else web.Response()
    return None


def _of_gateway(comfy: FakeComfy) -> web.Response:
    status = comfy.faults.gateway_status
    return web.Response(status=status, text=f"<html><title>error code: {status}</title></html>")


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _spoilt(comfy: FakeComfy, request: web.Request, how: How, answer: web.StreamResponse) -> web.StreamResponse:
    """The request was done; its answer does not come as it should."""
    if how is How.LATE:
        await _held(comfy)
        return answer
    if how is How.ERROR_AFTER:
        return web.Response(status=500, text="500 Internal Server Error\n\nServer got itself in trouble")
    if how is How.GARBAGE:
        return web.Response(body=_HTML, content_type="text/html")
    if how is How.EMPTY:
        return web.Response()
    if how is How.HUGE:
        return await _huge(comfy, request, answer)
    if how is How.CUT:
        return await _cut(request, answer)
    return _hang_up(request)


def _bytes_of(answer: web.StreamResponse) -> bytes:
    if isinstance(answer, web.FileResponse):
        return Path(answer._path).read_bytes()
    return bytes(answer.body) if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else b""


async def _cut(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    whole = _bytes_of(answer)
    half = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    half.content_length = len(whole)
    await half.prepare(request)
    await half.write(whole[: len(whole) // 2])
    _hang_up(request)
    return half


async def _huge(comfy: FakeComfy, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """JSON stays JSON: the padding is one more key, or white space after a list."""
    whole, padding = _bytes_of(answer), comfy.faults.huge_bytes
    is_object = answer.content_type == "application/json" and whole.endswith(b"}")
    tail = b'"}' if is_object else b""
    if is_object:
        whole = whole[:-1] + (b"" if whole == b"{}" else b",") + b'"padding":"'
    grown = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    grown.content_length = len(whole) + padding + len(tail)
    await grown.prepare(request)
    await grown.write(whole)
    block = b"x" * 65536 if is_object else b" " * 65536
    for start in range(0, padding, len(block)):
        await grown.write(block[: padding - start])
    await grown.write(tail)
    return grown
