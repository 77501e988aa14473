"""The servers of one source, and the choice of the one that a prompt is sent to.

The least loaded server is chosen: the shortest queue, prompts on the way there included, round robin among equals. An
unreachable server is skipped with exponential backoff, unless no other is left. There is no circuit breaker for one
server: a call is stopped only when all of them are down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final

from toolhub_service.adapters.callers import CallersOf
from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply
from toolhub_service.adapters.comfyui.event_feed import EventFeed
from toolhub_service.adapters.comfyui.states import PromptState, PromptStatus, newest_in_history, read_status
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.upstream import one_line
from toolhub_service.credentials.secret import CallerCredential
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import Clock

_WORD_MAX_CHARS: Final = 64
_CHECKED_CHARS: Final = 4_000
_OK: Final = 200
_DOWN_FIRST_S: Final = 2.0
_DOWN_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What a server reports about itself, truncated; untrusted."""

    version: str = ""
    pytorch: str = ""
    device: str = ""
    has_jobs: bool = False
    upload_max_bytes: int = 0
    """0: not reported."""


async def _kind_of(client: ComfyClient) -> ServerKind:
    """Return the server's version, device and routes. Raises NoReply."""
    stats = await client.get("/system_stats")
    system, devices = stats.fields.get("system"), stats.fields.get("devices")
    if not isinstance(system, Mapping):
        raise NoReply(f"the server there is not ComfyUI (status {stats.status})", was_sent=False)
    first = devices[0] if isinstance(devices, list) and devices else None
    # 0.33 answers `/api/jobs` (atomic read of a job, atomic cancel); 0.3.64 does not have it: 404, empty body.
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
    value: Any = holder.get(key) if isinstance(holder, Mapping) else None
    return one_line(redact(value[:_CHECKED_CHARS]), _WORD_MAX_CHARS) if isinstance(value, str) else ""


class StopResult(Enum):
    REMOVED = "removed"
    """The server has removed it, which explains why it may be unknown there."""
    INTERRUPTED = "interrupted"
    """It runs, and the server was asked to stop it."""
    OVER = "over"
    """There is nothing to stop."""


@dataclass(slots=True)
class _Known:
    """What is known of one server, shared by all who ask it."""

    witness: str = ""
    kind: ServerKind | None = None
    down_until_s: float = -inf
    down_for_s: float = 0.0
    in_flight: int = 0


class CallerOf:
    """The caller of one call. Implements `Caller`."""

    def __init__(self, callers: CallersOf, call: GrantedCall) -> None:
        self._callers = callers
        self._call = call

    async def credential(self) -> CallerCredential | None:
        return await self._callers.of(self._call)

    async def renew(self, used: CallerCredential) -> CallerCredential | None:
        return await self._callers.renew(self._call, used)

    def refusal(self) -> ToolFailure:
        return self._callers.refusal(self._call)


class Backend:
    """One server: its client, its events, its queue, and whether it is down."""

    def __init__(
        self,
        client: ComfyClient,
        events: EventFeed,
        poller: Poller,
        fetches: Poller,
        clock: Clock,
        callers: CallersOf | None = None,
    ) -> None:
        """`poller` polls the state of prompts, `fetches` downloads files: a long download must not delay a poll.
        `callers`: where requests for a call carry its caller's own credential."""
        self.name = client.name
        self.client = client
        self.events = events
        self.poller = poller
        self.fetches = fetches
        self._own = client
        self._clock = clock
        self._callers = callers
        self._known = _Known()

    def for_caller(self, call: GrantedCall) -> Backend:
        """Return the same server with the credential of the call's principal; what is known of the server is shared."""
        if self._callers is None:
            return self
        other = copy(self)
        other.client = self._own.by(CallerOf(self._callers, call))
        return other

    @property
    def witness(self) -> str:
        """Return a prompt that the server knew: while it still knows it, it has not been restarted. Empty: none."""
        return self._known.witness

    @property
    def is_down(self) -> bool:
        return self._clock.monotonic_s() < self._known.down_until_s

    async def kind(self, *, anew: bool = False) -> ServerKind:
        """Return what the server is; asked once, or again with `anew`. Raises NoReply."""
        known = self._known
        if known.kind is None or anew:
            kind = known.kind = await _kind_of(self._own)
            newest = None
            with suppress(NoReply):  # without a witness a restart is only noticed later
                newest = await newest_in_history(self._own)
            known.witness = newest.prompt_id if newest is not None else ""
            self.is_back()
            return kind
        return known.kind

    async def read_status(self, prompt_id: str) -> PromptStatus:
        """Return the state of a prompt. Raises NoReply."""
        seen = await read_status(self.client, prompt_id, has_jobs=(await self.kind()).has_jobs)
        if seen.state.is_over or not (self.witness or seen.state is PromptState.UNKNOWN):
            self._known.witness = prompt_id
        elif seen.state is PromptState.UNKNOWN and prompt_id == self.witness:
            self._known.witness = ""
        return seen

    async def stop(self, prompt_id: str) -> StopResult:
        """Stop this prompt and no other. Raises NoReply when the server does not answer.

        A running node is never interrupted, only the nodes after it.
        """
        state = (await self.read_status(prompt_id)).state
        if state not in (PromptState.PENDING, PromptState.RUNNING):
            return StopResult.OVER
        if (await self.kind()).has_jobs:
            # One atomic request, which may be repeated.
            reply = await self.client.post(f"/api/jobs/{prompt_id}/cancel", {})
            if reply.status == _OK and reply.fields.get("cancelled") is True:
                return StopResult.REMOVED
            if (await self.read_status(prompt_id)).state in (PromptState.PENDING, PromptState.RUNNING):
                raise NoReply(f"it does not stop it ({reply.status})")
            return StopResult.OVER
        return await self._stop_by_queue(prompt_id, was_waiting=state is PromptState.PENDING)

    async def _stop_by_queue(self, prompt_id: str, *, was_waiting: bool) -> StopResult:
        # An interrupt without an id, or to a server too old to read one, stops whichever prompt runs: so the prompt is
        # removed from the queue first, and interrupted only when it is the running one.
        deleted = await self.client.post("/queue", {"delete": [prompt_id]})
        state = (await self.read_status(prompt_id)).state
        if state is PromptState.RUNNING:
            reply = await self.client.post("/interrupt", {"prompt_id": prompt_id})
            if reply.status != _OK:
                raise NoReply(f"it does not stop it ({reply.status})")
            return StopResult.INTERRUPTED
        if state is PromptState.PENDING:
            raise NoReply(f"it does not remove it from its queue ({deleted.status})")
        is_removed = state is PromptState.UNKNOWN and was_waiting and deleted.status == _OK
        return StopResult.REMOVED if is_removed else StopResult.OVER

    async def queue(self) -> int:
        """Return how many prompts wait or run there, including those on their way from here. Raises NoReply."""
        # A few bytes, whereas /queue would return the graph of every waiting prompt.
        info = (await self.client.get("/prompt")).fields.get("exec_info")
        waiting = info.get("queue_remaining") if isinstance(info, dict) else None
        if not isinstance(waiting, int):
            raise NoReply("it does not report the length of its queue")
        self.is_back()
        return waiting + self._known.in_flight

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a prompt as on its way there."""
        self._known.in_flight += 1
        try:
            yield
        finally:
            self._known.in_flight -= 1

    def note_failure(self) -> None:
        """Skip the server for a while, and read again what it is."""
        known = self._known
        known.kind = None
        known.down_for_s = min(max(2 * known.down_for_s, _DOWN_FIRST_S), _DOWN_MAX_S)
        known.down_until_s = self._clock.monotonic_s() + known.down_for_s

    def is_back(self) -> None:
        self._known.down_until_s, self._known.down_for_s = -inf, 0.0


class Backends:
    """The servers of one source; chooses the one that a prompt is sent to."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._by_name = {backend.name: backend for backend in backends}
        self._turn = 0

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Backend | None:
        return self._by_name.get(name)

    async def choose(self, names: frozenset[str]) -> Backend | None:
        """Return the best of these servers for the next prompt; None when none is left."""
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


async def _queue_of(backend: Backend) -> float:
    try:
        return await backend.queue()
    except NoReply:
        backend.note_failure()
        return inf
