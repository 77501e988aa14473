"""A job server as the world has them: real HTTP on loopback, real effects that are counted, and scripted misbehaviour.

    POST   /jobs              begin (header Idempotency-Key; body: Work)      202 {id, key, state, …}
    GET    /jobs?key=…        which jobs have this key?                       200 {jobs: [...]}
    GET    /jobs/{id}         how far is it?                                  200 | 404
    DELETE /jobs/{id}         stop it                                         202 | 405 it cannot | 409 it has ended
    GET    /jobs/{id}/result  what has it brought?                            200 | 404 | 409 it has not ended

    POST   /script            [{op, how, times}] what is to go wrong next; as a process only these two tell
    GET    /seen              {effects: {key: n}, asked: {op: n}}

`python -m tests.fakes.job_server --port 0` says `port N` and serves until killed, so that a hub can die without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.http_server import RecordedRequest, next_request, response
from tests.fakes.job_server_faults import How, Op, Script
from tests.fakes.job_server_work import Memory, RemoteTask, Work

Answered = tuple[int, Any]
Sent = tuple[bytes, bool]
"""Bytes, and whether the connection stays open after them."""

_UNDONE: dict[How, bytes] = {
    How.ERROR: response(b"Internal Server Error", status=500),
    How.BUSY: response(b"try later", status=503, retry_after="0"),
    How.REFUSE: response(b'{"message":"forbidden"}', status=403),
}
_SPOILT: dict[How, bytes] = {
    How.LOSE_ANSWER: b"",
    How.GARBAGE: response(b"<html>It works!</html>"),
    How.ERROR_AFTER: response(b"Internal Server Error", status=500),
}


class JobServer:
    """Everything that happened, and what is to happen. `asked` counts requests, answered or not."""

    def __init__(self, *, honours_keys: bool = False, can_find: bool = True, can_stop: bool = True) -> None:
        self.memory = Memory(honours_keys=honours_keys)
        self.script = Script()
        self.asked: Counter[Op] = Counter()
        self.let_go = asyncio.Event()
        """Work that holds goes on, and answers that were held are sent."""
        self.port = 0
        self.connections = 0
        """Open now."""
        self._can_find = can_find
        self.can_stop = can_stop
        self._late: list[tuple[str, Work]] = []
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def effects(self) -> Counter[str]:
        return self.memory.effects

    async def was_asked(self, op: Op, times: int = 1) -> None:
        """Wait until so many requests of this kind have arrived."""
        while self.asked[op] < times:
            self._news.clear()
            await self._news.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while (asked := await next_request(reader)) is not None:
                raw, stays_open = await self._answer(asked)
                writer.write(raw)
                await writer.drain()
                if not stays_open:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def _answer(self, asked: RecordedRequest) -> Sent:
        url = urlsplit(asked.target)
        if url.path == "/script":
            for fault in json.loads(asked.body):
                self.script.add(Op(fault["op"]), How(fault["how"]), fault.get("times", 1))
            return _json(200, {}), True
        if url.path == "/seen":
            return _json(200, {"effects": self.effects, "asked": {op.value: n for op, n in self.asked.items()}}), True
        op = _op(asked.method, url.path)
        self.asked[op] += 1
        self._news.set()
        return await self._spoilt(op, asked, self.script.next(op))

    async def _spoilt(self, op: Op, asked: RecordedRequest, how: How | None) -> Sent:
        """The answer, with what goes wrong with it."""
        if how in _UNDONE:
            return _UNDONE[how], True
        if how is How.DROP:
            return b"", False
        if how is How.LATE:
            self._late.append(_asked_work(asked))
            return b"", False
        self._forget(asked, how)
        raw = _json(*self._done(op, asked, how))
        if how is How.HOLD:
            await self.let_go.wait()
        if how is How.CUT:
            return raw[: len(raw) // 2], False
        return _SPOILT.get(how, raw) if how is not None else raw, how is not How.LOSE_ANSWER

    def _forget(self, asked: RecordedRequest, how: How | None) -> None:
        if how is How.FORGET:
            self.memory.tasks.pop(_id(asked), None)
        elif how is How.RESTART:
            self.memory.tasks.clear()

    def _done(self, op: Op, asked: RecordedRequest, how: How | None) -> Answered:
        """Do it."""
        if op is Op.START:
            return 202, _as_json(self.memory.take(*_asked_work(asked)))
        if op is Op.FIND:
            return self._found(asked, how)
        task = self.memory.tasks.get(_id(asked))
        if task is None or how is How.HIDE:
            return 404, {"message": "no such job"}
        if op is Op.STATUS:
            return 200, task.look(self.let_go.is_set())
        return self._stopped(task, how) if op is Op.CANCEL else _result(task)

    def _found(self, asked: RecordedRequest, how: How | None) -> Answered:
        if not self._can_find:
            return 404, {"message": "no such route"}
        key = parse_qs(urlsplit(asked.target).query).get("key", [""])[0]
        found = [] if how is How.HIDE else [_as_json(task) for task in self.memory.of(key)]
        while self._late:
            self.memory.take(*self._late.pop())
        return 200, {"jobs": found}

    def _stopped(self, task: RemoteTask, how: How | None) -> Answered:
        if not self.can_stop:
            return 405, {"message": "jobs cannot be stopped"}
        if task.has_ended:
            return 409, _as_json(task)
        if how is not How.IGNORE:
            task.stop()
        return 202, _as_json(task)


def _json(status: int, body: Any) -> bytes:
    return response(json.dumps(body).encode(), status=status, content_type="application/json")


def _op(method: str, path: str) -> Op:
    if method == "POST":
        return Op.START
    if method == "DELETE":
        return Op.CANCEL
    if path.endswith("/result"):
        return Op.RESULT
    return Op.FIND if path == "/jobs" else Op.STATUS


def _id(asked: RecordedRequest) -> str:
    parts = urlsplit(asked.target).path.split("/")
    return parts[2] if len(parts) > 2 else ""


def _asked_work(asked: RecordedRequest) -> tuple[str, Work]:
    return asked.headers.get("idempotency-key", ""), Work(**json.loads(asked.body))


def _as_json(task: RemoteTask) -> dict[str, Any]:
    return {"id": task.id, "key": task.key, "state": task.state}


def _result(task: RemoteTask) -> Answered:
    if not task.has_ended:
        return 409, _as_json(task)
    return 200, _as_json(task) | {"value": task.work.result}


async def _listen(server: JobServer, port: int) -> asyncio.Server:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port, backlog=1_024)
    server.port = listening.sockets[0].getsockname()[1]
    return listening


@asynccontextmanager
async def job_server(**traits: bool) -> AsyncIterator[JobServer]:
    """A server on a free port of this process; keywords are those of JobServer."""
    server = JobServer(**traits)
    listening = await _listen(server, 0)
    try:
        yield server
    finally:
        server.let_go.set()
        listening.close()
        await listening.wait_closed()


async def _main() -> None:
    parser = argparse.ArgumentParser(description="A scripted job server.")
    parser.add_argument("--port", type=int, default=0)
    for trait in ("honours-keys", "no-find", "no-stop"):
        parser.add_argument(f"--{trait}", action="store_true")
    asked = parser.parse_args()
    server = JobServer(honours_keys=asked.honours_keys, can_find=not asked.no_find, can_stop=not asked.no_stop)
    listening = await _listen(server, asked.port)
    print(f"port {server.port}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
