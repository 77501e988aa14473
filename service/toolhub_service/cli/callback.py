"""A browser's way back to a command that waits for it: one request to a port of loopback (RFC 8252 §7.3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

_PATH = "/callback"
_DONE = b"Done. You can close this window and go back to the terminal.\n"
_QUERY_MAX_CHARS = 16 * 1024


class Callback:
    """Listens on 127.0.0.1; `answer` waits for the browser."""

    def __init__(self) -> None:
        self._server = HTTPServer(("127.0.0.1", 0), _Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def answer(self, timeout_s: float) -> dict[str, str]:
        """The query that came back; empty when none came in time."""
        ends_s = time.monotonic() + timeout_s
        while (left_s := ends_s - time.monotonic()) > 0:
            self._server.timeout = left_s
            _Handler.query = {}
            self._server.handle_request()
            if _Handler.query:
                return _Handler.query
        return {}

    def close(self) -> None:
        self._server.server_close()


@contextmanager
def callback() -> Iterator[Callback]:
    opened = Callback()
    try:
        yield opened
    finally:
        opened.close()


def query_of(url: str) -> dict[str, str]:
    """The first value of each name in the query of a URL."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


class _Handler(BaseHTTPRequestHandler):
    query: ClassVar[dict[str, str]] = {}
    timeout = 10.0

    def do_GET(self) -> None:
        known = urlsplit(self.path).path == _PATH and len(self.path) <= _QUERY_MAX_CHARS
        if known:
            type(self).query = query_of(self.path)
        self.send_response(200 if known else 404)
        self.send_header("content-type", "text/plain; charset=utf-8")
        # The URL of this page holds a code: no other page learns of it.
        self.send_header("referrer-policy", "no-referrer")
        self.send_header("content-length", str(len(_DONE) if known else 0))
        self.end_headers()
        if known:
            self.wfile.write(_DONE)

    def log_message(self, *_: Any) -> None:
        """Nothing: the request line holds the code."""
