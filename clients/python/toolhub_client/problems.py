"""Why there is no connection to a hub. gRPC's words are the only sign of it, and only this file reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Problem(Enum):
    """What keeps a connection from being made."""

    UNRESOLVED = auto()
    """The host's name has no address."""
    NO_HUB = auto()
    """The server speaks HTTP/1, as the port of a hub's metrics does."""
    PLAINTEXT = auto()
    """The server does not use TLS."""
    OUT_OF_DATE = auto()
    """The server's certificate is not valid now."""
    NOT_TRUSTED = auto()
    """Who signed the server's certificate is not trusted."""
    OTHER_NAME = auto()
    """The server's certificate is for another host name."""
    HANDSHAKE = auto()
    """TLS fails for another reason."""
    REFUSED = auto()
    """Nothing listens there."""
    CLOSED = auto()
    """The server closes connections, as one does that wants TLS, or a client certificate."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    problem: Problem
    words: str = ""
    """Those of OpenSSL that say more, such as `certificate has expired`; empty where there are none."""


_NOT_TRUSTED: Final = re.compile(r"(?:CERTIFICATE_VERIFY_FAILED|BAD_SIGNATURE)(?:: ([^:]+))?")
_DATED: Final = re.compile("certificate (?:has expired|is not yet valid)")
# The first that is found counts: a certificate that has expired is not trusted either.
_SIGNS: Final = (
    (re.compile("address lookup failed|DNS resolution failed"), Problem.UNRESOLVED),
    (re.compile(r"http1\.x"), Problem.NO_HUB),
    (re.compile("WRONG_VERSION_NUMBER"), Problem.PLAINTEXT),
    (_DATED, Problem.OUT_OF_DATE),
    (_NOT_TRUSTED, Problem.NOT_TRUSTED),
    (re.compile("Hostname Verification"), Problem.OTHER_NAME),
    (re.compile("andshake failed"), Problem.HANDSHAKE),
    (re.compile("Connection refused"), Problem.REFUSED),
    (re.compile("Socket closed|connection attempt timed out before receiving SETTINGS"), Problem.CLOSED),
)


def diagnose(details: str) -> Diagnosis:
    """What gRPC's `details` of UNAVAILABLE mean, when no connection was made."""
    for sign, problem in _SIGNS:
        if found := sign.search(details):
            return Diagnosis(problem, _words(problem, found, details))
    return Diagnosis(Problem.UNKNOWN)


def _words(problem: Problem, found: re.Match[str], details: str) -> str:
    match problem:
        case Problem.OUT_OF_DATE:
            return found[0]
        case Problem.NOT_TRUSTED:
            return found[1] or ""
        case Problem.HANDSHAKE:
            return details.rpartition("last error: ")[2]
        case _:
            return ""


def explain(details: str, *, is_encrypted: bool) -> str:
    """What to do about it, in the words of this client; empty: gRPC does not say."""
    found = diagnose(details)
    match found.problem:
        case Problem.UNRESOLVED:
            return "The name of the host has no address: check the hub's address (TOOLHUB_ADDRESS)."
        case Problem.NO_HUB:
            return "The server is not a hub: it speaks HTTP/1. Use the hub's gRPC port, not the port of its metrics."
        case Problem.PLAINTEXT:
            return "The server does not use TLS: leave out https:// and TOOLHUB_CA_FILE."
        case Problem.OUT_OF_DATE:
            return "The server's certificate has expired or is not valid yet: it must be renewed, or a clock is wrong."
        case Problem.NOT_TRUSTED:
            return "The server's certificate is not trusted: give the CA that signed it as ca_file (TOOLHUB_CA_FILE)."
        case Problem.OTHER_NAME:
            return "The server's certificate is for another host name: use one that the certificate contains."
        case Problem.HANDSHAKE:
            return f"The TLS handshake failed: {found.words}"
        case Problem.CLOSED:
            wants = "a client certificate (cert_file and key_file)" if is_encrypted else "TLS (https://, ca_file)"
            return f"The server closes the connection: it probably wants {wants}."
        case _:
            return ""
