"""Sends answers, with what a fault makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web

from tests.fakes.n8n.answers import HTML, Answer, GoneError, message
from tests.fakes.n8n.executions import ExecutionBook
from tests.fakes.n8n.faults import Fault, How
from tests.fakes.n8n.world import RecordedRequest

_PIECE = b"x" * 65_536
_PAGE = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
_SORRY = b"<html><head><title>Internal Server Error</title></head><body><h1>500</h1></body></html>"


def _of_gateway(fault: Fault) -> Answer:
    return Answer(fault.status, f"<html><h1>error code: {fault.status}</h1></html>".encode(), HTML)


_INSTEAD: dict[How, Callable[[Fault], Answer]] = {
    How.ERROR: lambda _: Answer(500, _SORRY, HTML),
    How.BAD_GATEWAY: _of_gateway,
    How.BUSY: lambda fault: Answer(503, b"Service Unavailable", HTML, {"Retry-After": fault.retry_after}),
    How.LIMITED: lambda fault: replace(message(429, "Too many requests"), headers={"Retry-After": fault.retry_after}),
    How.UNAUTHORIZED: lambda _: message(401, "unauthorized"),
    How.NO_ROUTE: lambda _: message(404, "not found"),
}
"""Nothing is done."""
_AFTERWARDS: dict[How, Callable[[Answer], Answer]] = {
    How.EMPTY: lambda answer: replace(answer, status=200, body=b""),
    How.ERROR_AFTER: lambda _: Answer(500, _SORRY, HTML),
    How.TRUNCATED: lambda answer: replace(answer, body=answer.body[: len(answer.body) // 2]),
    How.WRONG_TYPE: lambda answer: replace(answer, content_type=HTML),
    How.GARBAGE: lambda _: Answer(200, _PAGE, HTML),
}


class UntypedResponse(web.Response):
    """Goes out without the content type that the library would make up."""


class FaultInjector:
    """Does what is asked by `done`, and sends the answer, or what is left of it."""

    def __init__(self, done: Callable[[RecordedRequest], Awaitable[Answer]], book: ExecutionBook) -> None:
        self._done = done
        self._book = book
        self._later: set[asyncio.Task[None]] = set()

    async def sent(self, request: web.Request, asked: RecordedRequest, fault: Fault | None) -> web.StreamResponse:
        """The response.

        Raises:
            GoneError: there is none; the connection is to be closed.
        """
        if fault is None:
            return _response(await self._done(asked))
        if fault.how is How.GAVE_UP:
            self._later.add(asyncio.create_task(self._do(asked)))
            return _response(_of_gateway(fault))
        if fault.how in _INSTEAD:
            return _response(_INSTEAD[fault.how](fault))
        await self._before(asked, fault)
        answer = await self._done(asked)
        return await self._after(request, answer, fault)

    async def close(self) -> None:
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    async def _before(self, asked: RecordedRequest, fault: Fault) -> None:
        match fault.how:
            case How.DROP:
                raise GoneError
            case How.LATER:
                self._later.add(asyncio.create_task(self._do_later(asked, fault)))
                raise GoneError
            case How.STALL:
                await fault.is_let_go.wait()
            case How.TWICE:
                again = asyncio.create_task(self._do(asked))
                self._later.add(again)
            case How.FORGET:
                for row in self._book:
                    if not row.is_active:
                        self._book.forget(row.id)

    async def _after(self, request: web.Request, answer: Answer, fault: Fault) -> web.StreamResponse:
        match fault.how:
            case How.LOSE_ANSWER:
                raise GoneError
            case How.HOLD:
                await fault.is_let_go.wait()
            case How.CUT:
                return await _cut(request, answer)
            case How.HUGE:
                return await _huge(request, fault.size_bytes)
            case How.DRIP:
                return await _drip(request, answer, fault)
        return _response(_AFTERWARDS[fault.how](answer) if fault.how in _AFTERWARDS else answer)

    async def _do_later(self, asked: RecordedRequest, fault: Fault) -> None:
        await fault.is_let_go.wait()
        await self._do(asked)

    async def _do(self, asked: RecordedRequest) -> None:
        """What nobody waits for may end without an answer."""
        try:
            await self._done(asked)
        except GoneError:
            return


def _response(answer: Answer) -> web.Response:
    kind = UntypedResponse if answer.content_type is None else web.Response
    return kind(status=answer.status, body=answer.body, headers=_headers(answer))


def _headers(answer: Answer) -> dict[str, str]:
    typed = {} if answer.content_type is None else {"Content-Type": answer.content_type}
    return typed | dict(answer.headers)


async def _started(request: web.Request, answer: Answer, length_bytes: int) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    response.content_length = length_bytes
    await response.prepare(request)
    return response


async def _cut(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = await _started(request, answer, len(answer.body))
    await response.write(answer.body[: len(answer.body) // 2])
    # A close, where an abort might take back what was written.
    if request.transport is not None:
        request.transport.close()
    return response


async def _huge(request: web.Request, size_bytes: int) -> web.StreamResponse:
    """A JSON string; a reader that stops closes the connection, and that ends it."""
    response = await _started(request, Answer(200), size_bytes)
    try:
        await response.write(b'"')
        for at in range(1, size_bytes - 1, len(_PIECE)):
            await response.write(_PIECE[: size_bytes - 1 - at])
        await response.write(b'"')
    except ConnectionError:
        raise GoneError from None
    return response


async def _drip(request: web.Request, answer: Answer, fault: Fault) -> web.StreamResponse:
    response = await _started(request, answer, len(answer.body))
    at = 0
    try:
        while at < len(answer.body) and not fault.is_let_go.is_set():
            await response.write(answer.body[at : at + 1])
            at += 1
            await asyncio.sleep(fault.every_s)
        await response.write(answer.body[at:])
    except ConnectionError:
        raise GoneError from None
    return response
