"""Servers as public reports describe them, as bytes: `python reported.py NAME` over stdio, or `over_http(NAME)`.

Standard library only. Each has one tool, `say`, which answers "said", and speaks the generation of 2025-11-25.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
_INFO = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "reported", "version": "1"}}
_SAY = {"name": "say", "description": "Say it.", "inputSchema": {"type": "object"}}
_TOKEN_OF_NOBODY = {"progressToken": "of-nobody", "progress": 4, "total": 4}
LATE_PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": _TOKEN_OF_NOBODY}
PING = {"jsonrpc": "2.0", "id": "are-you-there", "method": "ping"}


def answer_to(message: Message) -> Message:
    """A right answer to a request."""
    own = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        return {**own, "result": {**_INFO, "capabilities": {"tools": {}}}}
    if message["method"] == "tools/list":
        return {**own, "result": {"tools": [_SAY]}}
    if message["method"] == "tools/call":
        return {**own, "result": {"content": [{"type": "text", "text": "said"}]}}
    return {**own, "error": {"code": -32601, "message": "Method not found"}}


def _line(message: Message, end: bytes = b"\n") -> bytes:
    return json.dumps(message).encode() + end


def _banner(message: Message) -> bytes:
    words = b"Server 1.0 starting\n{ready: true}\n\xff\xfe\n" if message["method"] == "initialize" else b""
    return words + _line(answer_to(message))


def _late_progress(message: Message) -> bytes:
    return _line(answer_to(message)) + _line(LATE_PROGRESS)


STDIO: dict[str, Callable[[Message], bytes]] = {
    "banner": _banner,
    "crlf": lambda message: _line(answer_to(message), b"\r\n"),
    "late-progress": _late_progress,
    "pings": lambda message: _line(answer_to(message)),
}


def speak(name: str) -> None:
    """Until standard input ends. `pings` answers a call only when its own ping has been answered."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if name == "pings" and message["method"] == "tools/call":
            _write(_line(PING))
            while (got := json.loads(sys.stdin.readline())).get("id") != PING["id"]:
                pass
            if "result" not in got:
                sys.exit("The client does not answer pings.")
        _write(STDIO[name](message))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


NOTIFIED: dict[str, tuple[int, bytes]] = {"null-to-notifications": (200, b"null"), "no-content": (204, b"")}
"""What is said to a notification; else 202 and nothing."""
_EVENT = b"event: message\ndata: %s\n\n"
STREAMED = {
    "event-stream-charset": _EVENT,
    "empty-pings": b": keep-alive\n\nevent: ping\ndata:\n\nevent: ping\ndata: \n\n" + _EVENT,
    "json-heartbeats": b'data: {"type": "heartbeat", "timestamp": "2025-10-31T11:30:41Z"}\n\n' + _EVENT,
    "keepalive-events": b"event: keepalive\ndata: {}\n\n" + _EVENT,
}
_KINDS = {"json-charset": b"application/json; charset=utf-8", "no-content-type": b""}


def over_http(name: str, body: bytes) -> bytes:
    """The whole HTTP response to the body of a POST."""
    message = json.loads(body)
    if "id" not in message or "method" not in message:
        status, said = NOTIFIED.get(name, (202, b""))
        return _http(status, b"application/json" if said else b"", said)
    said = json.dumps(answer_to(message)).encode()
    if name == "accepted-with-body":
        return _http(202, b"application/json", said)
    if name in STREAMED:
        return _http(200, b"text/event-stream; charset=utf-8", STREAMED[name] % said)
    return _http(200, _KINDS.get(name, b"application/json"), said)


def _http(status: int, kind: bytes, body: bytes) -> bytes:
    typed = b"content-type: " + kind + b"\r\n" if kind else b""
    sized = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
    return b"HTTP/1.1 %d Whatever\r\n%s%sconnection: close\r\n\r\n%s" % (status, typed, sized, body)


if __name__ == "__main__":
    speak(sys.argv[1])
