"""A source put together: servers, templates, jobs. Nothing is connected yet."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import httpx

from toolhub_service import __version__
from toolhub_service.adapters.comfyui.backends import Backend, Backends
from toolhub_service.adapters.comfyui.client import ComfyClient, NoCookies
from toolhub_service.adapters.comfyui.event_feed import EventFeed
from toolhub_service.adapters.comfyui.job import ComfyJob
from toolhub_service.adapters.comfyui.submitting import KeepMark
from toolhub_service.adapters.comfyui.template_shelf import TemplateShelf
from toolhub_service.adapters.comfyui.terms import BackendTerms, ComfyTerms
from toolhub_service.adapters.comfyui.websocket import Dialler
from toolhub_service.adapters.remote_polling import Poller, PollTerms
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.ports import Clock, Randomness, Resolver
from toolhub_service.guards.redaction import Redact
from toolhub_service.tools.egress.transport import GuardedTransport

POLLS = PollTerms(first_s=0.25, longest_s=5.0)
"""A look a second or two into a run, then every five; a quarter of a second after an event."""
FETCHES = PollTerms(first_s=0.25, longest_s=5.0, at_once=4)
_CONNECTIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a source that work together."""

    backends: Backends
    shelf: TemplateShelf
    job: ComfyJob
    http: httpx.AsyncClient
    guarded: GuardedTransport

    async def close(self) -> None:
        """End its connections."""
        await self.backends.close()
        await self.http.aclose()
        await self.guarded.aclose()


def opened(
    terms: ComfyTerms,
    resolver: Resolver,
    desk: ArtifactDesk,
    clock: Clock,
    randomness: Randomness,
    redact: Redact,
    keep_mark: KeepMark,
    *,
    tls: ssl.SSLContext | None = None,
    polls: PollTerms = POLLS,
) -> Opened:
    """Raises ValueError for a URL that is none."""
    rules = tuple(backend.rule for backend in terms.backends)
    guarded = GuardedTransport(resolver, tls=tls, max_connections=_CONNECTIONS_MAX)
    http = _http(terms, guarded.under(rules))

    def backend_of(backend: BackendTerms) -> Backend:
        poller = Poller(randomness, polls)
        dialler = Dialler(backend, resolver, tls=tls, connect_timeout_s=terms.connect_timeout_s)
        events = EventFeed(dialler, clock, randomness, poller.hurry)
        client = ComfyClient(backend, http, read_timeout_s=terms.read_timeout_s, redact=redact)
        return Backend(client, events, poller, Poller(randomness, FETCHES), clock)

    backends, shelf = Backends(map(backend_of, terms.backends)), TemplateShelf()
    job = ComfyJob(
        backends,
        shelf,
        desk,
        clock,
        redact,
        keep_mark,
        strip_metadata=terms.strip_metadata,
        lost_after_s=terms.lost_after_s,
    )
    return Opened(backends, shelf, job, http, guarded)


def _http(terms: ComfyTerms, transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=transport,
        headers={"user-agent": f"tool-hub/{__version__}"},
        timeout=httpx.Timeout(terms.read_timeout_s, connect=terms.connect_timeout_s, pool=None),
        cookies=NoCookies(),
        trust_env=False,
        follow_redirects=False,
    )
