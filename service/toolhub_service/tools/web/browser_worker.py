"""A process that takes one picture of one page with one browser, and ends.

Standard input is JSON: `url`, `executable`, `proxy`, `user`, `password`, `width`, `height`, `full_page`, `sandbox`,
`timeout_s`, `max_pixels`, `max_bytes`. Standard output is one line of JSON, then the PNG. The browser has a new profile
for this picture, and reaches the network only through the proxy.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_CPU_S = 120
_QUIET_S = 2.0

FLAGS = (
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--no-first-run",
    "--no-pings",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--renderer-process-limit=4",
    "--js-flags=--max-old-space-size=512",
)
# Pages do not need these for a picture, and each can bypass HTTP.
_WITHOUT = "for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection', 'WebTransport']) delete window[name];"


def main() -> None:
    with suppress(OSError, AttributeError):
        # A killed hub runs no clean-up, and a browser left behind keeps its memory.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    # The driver and the browser also print to standard output, so the answer has its own descriptor.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer, picture = take_screenshot(asked)
    answers.write(json.dumps(answer).encode() + b"\n" + picture)
    answers.flush()


def take_screenshot(asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the answer (`problem` is empty when there is a picture) and the PNG."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=asked["executable"],
                headless=True,
                args=list(FLAGS),
                chromium_sandbox=asked["sandbox"],
                proxy={"server": asked["proxy"], "username": asked["user"], "password": asked["password"]},
                timeout=asked["timeout_s"] * 1000,
            )
        except Error as error:
            return {"problem": "start", "detail": _detail(error)}, b""
        try:
            return _picture(browser, asked)
        except Error as error:
            return {"problem": "page", "detail": _detail(error)}, b""
        finally:
            browser.close()


def _picture(browser: Any, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    from playwright.sync_api import TimeoutError as LateError

    ends_s = time.monotonic() + asked["timeout_s"]
    context = browser.new_context(
        viewport={"width": asked["width"], "height": asked["height"]},
        accept_downloads=False,
        # A service worker's requests would bypass the route below.
        service_workers="block",
        permissions=[],
    )
    # WebRTC and WebTransport run over UDP, which no HTTP proxy sees.
    context.add_init_script(_WITHOUT)
    context.route("**/*", _check_route)
    page = context.new_page()
    response = page.goto(asked["url"], wait_until="domcontentloaded", timeout=asked["timeout_s"] * 1000)
    for state, seconds in (("load", asked["timeout_s"]), ("networkidle", _QUIET_S)):
        left_s = min(seconds, ends_s - time.monotonic())
        if left_s > 0:
            # A page that keeps loading (a feed, an advertisement) is still worth a picture.
            with suppress(LateError):
                page.wait_for_load_state(state, timeout=left_s * 1000)
    left_ms = max(1.0, ends_s - time.monotonic()) * 1000
    shown = {"type": "png", "timeout": left_ms, "animations": "disabled"}
    if asked["full_page"]:
        # As high as the page, within the limit; the rest is left out.
        height = max(1, asked["max_pixels"] // asked["width"])
        shown |= {"full_page": True, "clip": {"x": 0, "y": 0, "width": asked["width"], "height": height}}
    picture: bytes = page.screenshot(**shown)
    if len(picture) > asked["max_bytes"]:
        return {"problem": "size", "detail": str(len(picture))}, b""
    status = response.status if response is not None else 0
    return {"problem": "", "url": page.url, "title": page.title()[:300], "status": status}, picture


def _check_route(route: Any) -> None:
    """Tunnels hide methods from the proxy, so requests that may change something are blocked here."""
    request = route.request
    if request.method in {"GET", "HEAD", "OPTIONS"}:
        route.continue_()
    else:
        route.abort("blockedbyclient")


def _detail(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


if __name__ == "__main__":
    main()
