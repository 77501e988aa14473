"""A process that sends one message through Apprise and ends: it reads what to send on standard input, and reports how
it went on standard output, both as JSON.

It is a process because Apprise's senders block and cannot be interrupted: once ended with its call, it sends nothing
more. Apprise reports only yes or no, so answers of HTTP and SMTP servers are observed at the protocol libraries. None
of Apprise's own messages leaves this process, because they may contain the URL, which is a secret.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import smtplib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_ANSWER_S: Final = 30.0  # Apprise's own 4 s are too few for a server that is still reading 20 MB

_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from toolhub_service.tools.media.sender import main; main()"
)


def sender_argv() -> list[str]:
    """Return the command of a sender that imports from the same paths as this process."""
    return [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps(sys.path)]


class Exchanges:
    """What servers have answered so far, or why they have not."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"accepted": 0, "status": 0, "protocol": "", "unreached": False, "unclear": False}

    def note_answer(self, status: int, *, ok: bool, protocol: str) -> None:
        self.facts.update(status=status, protocol=protocol)
        self.facts["accepted"] += ok

    def note_unreached(self) -> None:
        """Note that no connection was made, so nothing was sent."""
        self.facts["unreached"] = True

    def unclear(self) -> None:
        """Note that all or a part was sent, and no answer came."""
        self.facts["unclear"] = True


def main() -> None:
    with suppress(OSError, AttributeError):
        # A sender must not outlive the hub: nobody would read whether the message was sent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    asked = json.load(sys.stdin)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
        # Output of plugins must not become part of the answer.
        answer = sys.stdout
        sys.stdout = nowhere
        sys.stderr = nowhere
        outcome = send(asked)
        answer.write(json.dumps(outcome))
        answer.flush()
        os._exit(0)  # Apprise's threads, if any, are not waited for


def send(asked: dict[str, Any]) -> dict[str, Any]:
    """`asked`: url, title, message, files (path, name, media_type).

    Returns `delivered`, `problem` (`url`, `crash` or empty) and the facts of `Exchanges`.
    """
    exchanges = Exchanges()
    observe_smtp(exchanges)
    observe_http(exchanges)
    delivered, problem = False, ""
    try:
        delivered, problem = _notify(asked)
    except Exception:  # noqa: BLE001 - a plugin is foreign code; whatever it raises, nothing more was delivered
        problem = "crash"
    return {"delivered": delivered, "problem": problem, **exchanges.facts}


def _notify(asked: dict[str, Any]) -> tuple[bool, str]:
    import apprise
    from apprise.attachment.file import AttachFile
    from apprise.url import URLBase

    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    # Set as the class's default, because an Apprise plugin may build further URLs besides the channel's.
    URLBase.socket_read_timeout = _ANSWER_S
    # A redirect would send the channel's key to a host that the operator never named.
    asset = apprise.AppriseAsset(async_mode=False, storage_mode="memory", http_redirects=False)
    plugin = apprise.Apprise.instantiate(asked["url"], asset=asset)
    if plugin is None:
        return False, "url"
    files = None
    if asked["files"]:
        files = apprise.AppriseAttachment(asset=asset)
        for kept in asked["files"]:
            file = AttachFile(kept["path"], name=kept["name"], mimetype=kept["media_type"])  # type: ignore[no-untyped-call]
            files.add(file)
    return bool(plugin.notify(body=asked["message"], title=asked["title"], attach=files, body_format="text")), ""


def observe_http(exchanges: Exchanges) -> None:
    """Note every exchange of `requests`, Apprise's HTTP library, and follow no redirect."""
    import requests

    send = requests.Session.send
    unreached = (requests.ConnectTimeout, requests.exceptions.SSLError, requests.exceptions.ProxyError)

    @wraps(send)
    def send_noted(self: Any, request: Any, **options: Any) -> Any:
        options["allow_redirects"] = False  # the operator has named only this host
        try:
            response = send(self, request, **options)
        except unreached:
            exchanges.note_unreached()
            raise
        except requests.ConnectionError as failed:
            # Only this name distinguishes a connection of urllib3 that was never made.
            if "NewConnectionError" in repr(failed) or "NameResolutionError" in repr(failed):
                exchanges.note_unreached()
            else:
                exchanges.unclear()
            raise
        except requests.RequestException:
            exchanges.unclear()
            raise
        exchanges.note_answer(response.status_code, ok=response.status_code < 300, protocol="HTTP")
        return response

    requests.Session.send = send_noted  # type: ignore[method-assign]


def observe_smtp(exchanges: Exchanges) -> None:
    """Note the answers of SMTP servers."""
    connect = smtplib.SMTP.connect
    data = smtplib.SMTP.data

    def noting(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run_noted(self: smtplib.SMTP, *args: Any, **named: Any) -> Any:
            try:
                return command(self, *args, **named)
            except smtplib.SMTPRecipientsRefused as refused:
                codes = (code for code, _ in refused.recipients.values())
                exchanges.note_answer(max(codes, default=0), ok=False, protocol="SMTP")
                raise
            except smtplib.SMTPResponseException as refused:
                exchanges.note_answer(refused.smtp_code, ok=False, protocol="SMTP")
                raise

        return run_noted

    def connect_noted(self: smtplib.SMTP, *args: Any, **named: Any) -> Any:
        try:
            return connect(self, *args, **named)
        except OSError:
            exchanges.note_unreached()
            raise

    def data_noted(self: smtplib.SMTP, *args: Any, **named: Any) -> Any:
        try:
            code, words = data(self, *args, **named)
        except smtplib.SMTPDataError:
            raise
        except (OSError, smtplib.SMTPServerDisconnected):
            exchanges.unclear()
            raise
        exchanges.note_answer(code, ok=code == 250, protocol="SMTP")
        return code, words

    smtplib.SMTP.connect = connect_noted  # type: ignore[method-assign]
    smtplib.SMTP.data = data_noted  # type: ignore[method-assign]
    smtplib.SMTP.sendmail = noting(smtplib.SMTP.sendmail)  # type: ignore[method-assign]
    smtplib.SMTP.login = noting(smtplib.SMTP.login)  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
