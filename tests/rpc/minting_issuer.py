"""An issuer on a port of loopback: its keys over HTTP, and tokens with any claims."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from tests.unit.identity.issuer import PRIVATE, public_jwk, signed

AUDIENCE: Final = "https://hub.example.com"
_KEY: Final = "ES256"


class MintingIssuer:
    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def token(self, sub: str, **claims: Any) -> str:
        now_s = int(time.time())
        good = {"iss": self.url, "sub": sub, "aud": AUDIENCE, "iat": now_s, "exp": now_s + 3_600}
        return signed({"alg": _KEY, "kid": _KEY, "typ": "at+jwt"}, {**good, **claims}, PRIVATE[_KEY], _KEY)

    def bearer(self, sub: str, **claims: Any) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token(sub, **claims)}"),)

    def settings(self, **more: Any) -> Mapping[str, Any]:
        """Its entry among `auth.jwt.issuers`."""
        return {"name": self.name, "issuer": self.url, "audiences": [AUDIENCE], **more}


@contextmanager
def minting_issuer(name: str) -> Iterator[MintingIssuer]:
    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            keys = {"keys": [public_jwk(PRIVATE[_KEY], _KEY, _KEY)]}
            documents = {"/.well-known/openid-configuration": {"issuer": url, "jwks_uri": f"{url}/keys"}, "/keys": keys}
            body = json.dumps(documents.get(self.path, {})).encode()
            self.send_response(200 if self.path in documents else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Not into the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Documents) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield MintingIssuer(f"http://127.0.0.1:{server.server_port}", name)
        finally:
            server.shutdown()
            thread.join()
