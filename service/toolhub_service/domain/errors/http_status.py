"""What an HTTP status says about the request that it answers: was it processed? One table for every tool that sends
requests: core/http.*, n8n, ComfyUI, MCP servers, channels of core/media.send.

A gateway answers in place of the server behind it, which may still be at work: n8n Cloud's proxy gives up after 100 s
with 524 while the workflow runs on. RFC 9110 §15 and RFC 6585 define the usual codes; 499 is nginx's, 52x and 530 are
Cloudflare's, 598 and 599 those of some proxies.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Processing(Enum):
    """What is known about the processing of a request that was answered."""

    ANSWERED = "answered"
    """The server itself has answered: the status is its verdict."""
    REFUSED = "refused"
    """The server declares that it has not processed the request, and may do so later."""
    NOT_REACHED = "not reached"
    """A gateway could not reach the server: the request has not been processed."""
    UNKNOWN = "unknown"
    """A gateway, or a server that gave up, answers in place of the work, which may have begun and may still run."""


_REFUSED: Final = frozenset({425, 429, 503})
_NOT_REACHED: Final = frozenset({521, 523, 525, 526, 530})
_UNKNOWN: Final = frozenset({408, 499, 502, 504, 520, 522, 524, 527, 598, 599})


def processing_of(status: int) -> Processing:
    """Return what an HTTP status says about the processing of its request."""
    if status in _UNKNOWN:
        return Processing.UNKNOWN
    if status in _NOT_REACHED:
        return Processing.NOT_REACHED
    return Processing.REFUSED if status in _REFUSED else Processing.ANSWERED
