"""A light load generator: the same HTTP/1.1 request on some connections that are kept, one at a time on each.

    python -m tests.bench.http_load PORT CONNECTIONS SECONDS <request

Nothing of the answer is parsed but its length and whether it is a result, so that it takes 30 µs a call. It says one
line of JSON: calls, failed, per_s, p50_ms, p99_ms.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import time
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_READ_BYTES = 65_536
_PATIENCE_S = 60.0


def main() -> None:
    port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(drive(port, sys.stdin.buffer.read(), connections, seconds)), flush=True)


def drive(port: int, request: bytes, connections: int, seconds: float) -> dict[str, Any]:
    poll, sockets = select.epoll(), {}
    began: dict[int, float] = {}
    started = time.perf_counter()
    for _ in range(connections):
        opened = socket.create_connection(("127.0.0.1", port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[opened.fileno()] = opened
        poll.register(opened, select.EPOLLIN)
        opened.sendall(request)
        began[opened.fileno()] = time.perf_counter()
    ends, taken, failed = started + seconds, [], 0
    while began:
        ready = poll.poll(_PATIENCE_S)
        if not ready:
            raise SystemExit(f"no answer for {_PATIENCE_S:g} s")
        for number, _ in ready:
            failed += not is_result(_answer(sockets[number]))
            now = time.perf_counter()
            taken.append((now - began.pop(number)) * 1e3)
            if now < ends:
                sockets[number].sendall(request)
                began[number] = now
    lasted = time.perf_counter() - started
    taken.sort()
    p50, p99 = (taken[min(len(taken) - 1, int(len(taken) * share))] for share in (0.5, 0.99))
    return {"calls": len(taken), "failed": failed, "per_s": len(taken) / lasted, "p50_ms": p50, "p99_ms": p99}


def is_result(answer: bytes) -> bool:
    return b" 200 " in answer[:16] and b'"structuredContent"' in answer and b'"isError":true' not in answer


def _answer(connection: socket.socket) -> bytes:
    answer = connection.recv(_READ_BYTES)
    while True:
        head, separator, body = answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if separator else None
        if separator and length is None:
            raise SystemExit(f"an answer of unknown length: {head!r}")
        if length is not None and len(body) >= int(length[1]):
            return answer
        more = connection.recv(_READ_BYTES)
        if not more:
            raise SystemExit(f"the connection was closed after {answer!r}")
        answer += more


if __name__ == "__main__":
    main()
