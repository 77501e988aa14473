"""The servers of one source, and which of them a prompt is sent to.

The one with the shortest queue (what it says itself, and what is on its way to it from here), in turn among equals. One
that cannot be reached is passed over for a while that grows, unless no other is left. Fewest-connections with a memory
of the dead; no breaker of its own, for a call is stopped by one only when every server is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply
from toolhub_service.adapters.comfyui.event_feed import EventFeed
from toolhub_service.adapters.comfyui.states import Seen, Stage, look, newest_in_history
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.shortening import one_line
from toolhub_service.domain.ports import Clock

# What a server is: its version and device, and which routes it has. Asked when it is first used and at each reading.
#
# 0.33 answers `/api/jobs` (one atomic look at a job, one atomic cancel); 0.3.64 has none of it: 404 with an empty body.

_WORD_MAX_CHARS: Final = 64
_JUDGED_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True)
class ServerKind:
    """In the server's own words, cut; untrusted."""

    version: str = ""
    pytorch: str = ""
    device: str = ""
    has_jobs: bool = False
    upload_max_bytes: int = 0
    """0: it does not say."""


async def kind_of(client: ComfyClient) -> ServerKind:
    """Raises NoReply."""
    stats = await client.get("/system_stats")
    system, devices = stats.fields.get("system"), stats.fields.get("devices")
    if not isinstance(system, Mapping):
        raise NoReply(f"what answers there ({stats.status}) is no ComfyUI server", was_sent=False)
    first = devices[0] if isinstance(devices, list) and devices else None
    jobs = await client.get("/api/jobs", {"limit": "1"})
    features = (await client.get("/features")).fields
    cap = features.get("max_upload_size")
    return ServerKind(
        version=_word(system, "comfyui_version", client.redact),
        pytorch=_word(system, "pytorch_version", client.redact),
        device=_word(first, "name", client.redact),
        has_jobs=isinstance(jobs.fields.get("jobs"), list),
        upload_max_bytes=cap if isinstance(cap, int) and cap > 0 else 0,
    )


def _word(holder: object, key: str, redact: Callable[[str], str]) -> str:
    said: Any = holder.get(key) if isinstance(holder, Mapping) else None
    return one_line(redact(said[:_JUDGED_CHARS]), _WORD_MAX_CHARS) if isinstance(said, str) else ""


_DOWN_FIRST_S: Final = 2.0
_DOWN_MAX_S: Final = 60.0


class Backend:
    """One server."""

    def __init__(self, client: ComfyClient, events: EventFeed, poller: Poller, fetches: Poller, clock: Clock) -> None:
        """`poller` asks how prompts fare, `fetches` for files: a long download must not hold up a question."""
        self.name = client.name
        self.client = client
        self.events = events
        self.poller = poller
        self.fetches = fetches
        self.witness = ""
        """A prompt that it was seen to know: while it knows that one, it has not been started anew. Empty: none."""
        self._clock = clock
        self._kind: ServerKind | None = None
        self._down_until_s = -inf
        self._down_for_s = 0.0
        self._on_the_way = 0

    @property
    def is_down(self) -> bool:
        return self._clock.monotonic_s() < self._down_until_s

    async def kind(self, *, anew: bool = False) -> ServerKind:
        """What it is; asked once, or `anew`. Raises NoReply."""
        if self._kind is None or anew:
            self._kind = await kind_of(self.client)
            self.witness = await _newest_id(self.client)
            self.is_back()
        return self._kind

    async def look(self, prompt_id: str) -> Seen:
        """Raises NoReply."""
        seen = await look(self.client, prompt_id, has_jobs=(await self.kind()).has_jobs)
        if seen.stage.is_over or not (self.witness or seen.stage is Stage.UNKNOWN):
            self.witness = prompt_id
        elif seen.stage is Stage.UNKNOWN and prompt_id == self.witness:
            self.witness = ""
        return seen

    async def queue(self) -> int:
        """How many prompts wait or run there, with those on their way from here. Raises NoReply."""
        info = (await self.client.get("/prompt")).fields.get("exec_info")
        said = info.get("queue_remaining") if isinstance(info, dict) else None
        if not isinstance(said, int):
            raise NoReply("it does not say how long its queue is")
        self.is_back()
        return said + self._on_the_way

    @contextmanager
    def sending(self) -> Iterator[None]:
        """While a prompt is on its way there."""
        self._on_the_way += 1
        try:
            yield
        finally:
            self._on_the_way -= 1

    def has_failed(self) -> None:
        """Pass it over for a while, and look anew at what it is."""
        self._kind = None
        self._down_for_s = min(max(2 * self._down_for_s, _DOWN_FIRST_S), _DOWN_MAX_S)
        self._down_until_s = self._clock.monotonic_s() + self._down_for_s

    def is_back(self) -> None:
        self._down_until_s, self._down_for_s = -inf, 0.0


class Backends:
    """All servers of a source."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._by_name = {backend.name: backend for backend in backends}
        self._turn = 0

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Backend | None:
        return self._by_name.get(name)

    async def choose(self, names: frozenset[str]) -> Backend | None:
        """Where the next prompt is best sent, of these; None when none is left."""
        able = [backend for backend in self if backend.name in names]
        alive = [backend for backend in able if not backend.is_down] or able
        if len(alive) < 2:
            return alive[0] if alive else None
        queues = await asyncio.gather(*(_queue_of(backend) for backend in alive))
        self._turn += 1
        order = sorted(range(len(alive)), key=lambda at: (queues[at], (at - self._turn) % len(alive)))
        return alive[order[0]]

    async def close(self) -> None:
        await asyncio.gather(*(backend.events.close() for backend in self))


async def _newest_id(client: ComfyClient) -> str:
    try:
        newest = await newest_in_history(client)
    except NoReply:
        return ""
    return newest.prompt_id if newest is not None else ""


async def _queue_of(backend: Backend) -> float:
    try:
        return await backend.queue()
    except NoReply:
        backend.has_failed()
        return inf


def names_of(backends: Sequence[Backend]) -> str:
    """For sentences."""
    return ", ".join(backend.name for backend in backends)
