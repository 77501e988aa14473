"""A login in the browser: the code comes back to a port of this machine, with PKCE (RFC 8252 §7.3, RFC 7636)."""

from __future__ import annotations

import base64
import hashlib
import queue
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from toolhub_service.cli.connection.oauth import Issuer, LoginFailed, Request, Tokens, request_tokens

_PATH: Final = "/callback"
_SILENT_S: Final = 10.0
_TEXT_MAX_CHARS: Final = 300
_HEADERS: Final = {
    "content-type": "text/plain; charset=utf-8",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",  # the address of the page holds the code
    "x-content-type-options": "nosniff",
    "connection": "close",
}

Answer = dict[str, str]


def by_browser(
    http: httpx.Client, issuer: Issuer, request: Request, visit: Callable[[str], object], timeout_s: float
) -> Tokens:
    """`visit` receives the URL at which the user logs in. Raises LoginFailed, IssuerUnreachable."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _listening(state) as (port, answers):
        redirect = f"http://127.0.0.1:{port}{_PATH}"
        query = {**request.asks, "response_type": "code", "redirect_uri": redirect, "state": state}
        query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        if "offline_access" in request.scopes:
            query["prompt"] = "consent"  # OpenID Connect Core §11: otherwise there is no refresh token
        joint = "&" if urlsplit(issuer.authorization_endpoint).query else "?"
        visit(f"{issuer.authorization_endpoint}{joint}{urlencode(query, doseq=True)}")
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise LoginFailed(
                f"Nobody logged in within {timeout_s:g} s. Run `toolhub login` again, with --device where the browser "
                "is on another machine."
            ) from None
    _check_issuer(issuer, answer)
    form = request.token_form(
        grant_type="authorization_code", code=answer["code"], redirect_uri=redirect, code_verifier=verifier
    )
    return request_tokens(http, issuer.issuer, issuer.token_endpoint, form)


def _check_issuer(issuer: Issuer, answer: Answer) -> None:
    """Check the answer. Raises LoginFailed.

    RFC 9207 §2.4: the answer must come from the issuer that was asked, or the code goes to the wrong one.
    """
    named = answer.get("iss", "")
    if named != issuer.issuer and (named or issuer.names_itself):
        shown = repr(named[:_TEXT_MAX_CHARS]) if named else "nobody"
        raise LoginFailed(f"The answer comes from {shown} and not from {issuer.issuer}: it was not used.")
    if answer.get("error") == "access_denied":
        raise LoginFailed(f"The login was denied at {issuer.issuer}.")
    if error := answer.get("error"):
        why = f"{error}: {answer.get('error_description', '')}"[:_TEXT_MAX_CHARS].rstrip(": .")
        raise LoginFailed(f"{issuer.issuer} refused: {why}.")
    if not answer.get("code"):
        raise LoginFailed(f"{issuer.issuer} answered without a code. Run `toolhub login` again.")


def _parameters(query: str) -> Answer:
    """Return None for what is no issuer's answer: a parameter that occurs twice (RFC 6749 §3.1), or twenty of them."""
    try:
        found = parse_qs(query, max_num_fields=20)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items()} if all(len(each) == 1 for each in found.values()) else {}


@contextmanager
def _listening(state: str) -> Iterator[tuple[int, queue.Queue[Answer]]]:
    """Yield the port, and the first answer that has the state; any other request is refused, because any page may send
    one."""
    answers: queue.Queue[Answer] = queue.Queue(1)

    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENT_S

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answer = _parameters(parts.query)
            if parts.path != _PATH or not secrets.compare_digest(answer.get("state", "").encode(), state.encode()):
                self._respond(400, "This is no answer to a login that is under way.")
                return
            self._respond(200, "Thank you. Go back to the terminal; this page can be closed.")
            # A browser that reloads the page answers twice; the first answer counts.
            with suppress(queue.Full):
                answers.put_nowait(answer)

        def _respond(self, status: int, text: str) -> None:
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Write nothing: the request line holds the code."""

    # Only loopback, by number: what `localhost` means can be changed (RFC 8252 §8.3).
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1]), answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
