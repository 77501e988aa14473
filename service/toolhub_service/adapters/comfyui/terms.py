"""What the operator says of ComfyUI servers, as plain values."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from toolhub_service.domain.constraints import EgressRule
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.urls import parse_url

METHODS = frozenset({"GET", "POST"})
ALL_NETWORKS = ("0.0.0.0/0", "::/0")
"""An operator's own server may stand anywhere; metadata services stay shut, for none of these names them."""


@dataclass(frozen=True, slots=True)
class BackendTerms:
    """One server."""

    name: str
    url: str
    """Base, without credentials and without a slash at its end."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request; may hold credentials."""

    @property
    def rule(self) -> EgressRule:
        """Egress to this server and to nothing else. Raises ValueError for what is no URL."""
        try:
            place = parse_url(self.url)
        except ToolFailure as wrong:
            raise ValueError(f"backend {self.name}: {wrong.error.message}") from wrong
        return EgressRule(
            (place.host,), frozenset({place.scheme}), frozenset({place.port}), METHODS, cidrs=ALL_NETWORKS
        )


@dataclass(frozen=True, slots=True)
class ComfyTerms:
    """A source: servers that all run the same templates."""

    name: str
    backends: tuple[BackendTerms, ...]
    templates: tuple[str, ...]
    """Sidecar files, or folders of them."""
    capabilities: tuple[str, ...] = ()
    """What a principal must hold to call its tools; empty: `comfyui:<name>`."""
    tags: tuple[str, ...] = ()
    timeout_s: float = 3_600.0
    max_concurrency: int = 0
    strip_metadata: bool = True
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    lost_after_s: float = 15.0
    shown_as: str = ""
    """What stands for its URLs wherever they are shown; empty: the URLs themselves."""

    @property
    def upstream(self) -> str:
        """Key of the breaker that its tools share: one for all backends, for a dead one is passed over here."""
        return f"comfyui:{self.name}"

    @property
    def endpoint(self) -> str:
        return self.shown_as or ", ".join(backend.url for backend in self.backends)


def backend_at(name: str, url: str, headers: Mapping[str, str]) -> BackendTerms:
    """User and password of the URL become a header, over which the operator's own goes. Raises ValueError."""
    parts = urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    named = {key.lower(): value for key, value in headers.items()}
    if at:
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        named = {"authorization": f"Basic {b64encode(pair).decode()}", **named}
    base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return BackendTerms(name, base, named)
