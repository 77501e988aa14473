"""The state of a prompt, from a server's jobs, or its history and queue.

With jobs it is one consistent answer. Without, history, then queue, then history again are read, because a prompt
leaves one list before it appears in the other. `{}` from the history may mean pending, running or unknown. The history
shows a stopped prompt as an error whose messages contain `execution_interrupted`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from toolhub_service.adapters.comfyui.client import LISTS_MAX_BYTES, ComfyClient, NoReply, Reply

ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
"""Ids of prompts that may be used in a URL."""
_OK: Final = 200
_NUMBERS_END: Final = 2**63
_NOT_FOUND: Final = 404


class PromptState(Enum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """Neither running, waiting nor in the history."""

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER: Final = frozenset({PromptState.SUCCEEDED, PromptState.FAILED, PromptState.CANCELLED})
_OF_JOBS: Final[Mapping[str, PromptState]] = {
    "pending": PromptState.PENDING,
    "in_progress": PromptState.RUNNING,
    "completed": PromptState.SUCCEEDED,
    "failed": PromptState.FAILED,
    "cancelled": PromptState.CANCELLED,
}
_OF_HISTORY: Final[Mapping[str, PromptState]] = {"success": PromptState.SUCCEEDED, "error": PromptState.FAILED}


@dataclass(frozen=True, slots=True)
class PromptStatus:
    """A server's report about one prompt. All but `state` is untrusted."""

    state: PromptState
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """Output by node."""
    messages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last message of each type."""
    graph: Any = None
    """As it was sent; None where the answer does not contain it."""
    place: tuple[int, int] | None = None
    """While it waits: (its position from 1, how many wait or run)."""
    created_ms: int = 0
    """On the server's wall clock; 0: not reported."""
    repairs: tuple[str, ...] = ()
    """What was repaired in the JSON of the answer."""

    @property
    def cached_nodes(self) -> tuple[str, ...]:
        """Return the nodes whose results were cached, each once."""
        nodes = self.messages.get("execution_cached", {}).get("nodes")
        named = (node for node in nodes if isinstance(node, str)) if isinstance(nodes, list) else ()
        return tuple(dict.fromkeys(named))

    def time_of(self, *kinds: str) -> int:
        """Return the time of the first of these messages, in ms on the server's clock; 0: not reported."""
        for kind in kinds:
            at = whole_number(self.messages.get(kind, {}).get("timestamp"))
            if at is not None:
                return at
        return 0


UNKNOWN: Final = PromptStatus(PromptState.UNKNOWN)


async def read_status(client: ComfyClient, prompt_id: str, *, has_jobs: bool) -> PromptStatus:
    """Return the state of a prompt. Raises NoReply."""
    if has_jobs:
        return await _in_jobs(client, prompt_id)
    return (
        await _in_history(client, prompt_id)
        or await _in_queue(client, prompt_id)
        or await _in_history(client, prompt_id)
        or UNKNOWN
    )


async def graph_of(client: ComfyClient, prompt_id: str) -> Any:
    """Return the graph of a known prompt; None when it is not available. Raises NoReply."""
    for seen in (await _in_history(client, prompt_id), await _in_queue(client, prompt_id)):
        if seen is not None:
            return seen.graph
    return None


class Newest(NamedTuple):
    """The prompt in the history that ended last."""

    number: int
    """Restarts with the server."""
    prompt_id: str
    """Empty when it may not be used in a URL."""


async def newest_in_history(client: ComfyClient) -> Newest | None:
    """Return the newest prompt; None: the history is empty. Raises NoReply."""
    reply = await client.get("/history", {"max_items": "1"}, max_bytes=LISTS_MAX_BYTES)
    found = [
        Newest(_item(entry.get("prompt")).number, prompt_id if ID.fullmatch(prompt_id) else "")
        for prompt_id, entry in reply.fields.items()
        if isinstance(entry, Mapping)
    ]
    return max(found, default=None)


async def _in_jobs(client: ComfyClient, prompt_id: str) -> PromptStatus:
    reply = await client.get(f"/api/jobs/{prompt_id}", max_bytes=LISTS_MAX_BYTES)
    # With a JSON body: the 404 of a server that lacks this route has none.
    if reply.status == _NOT_FOUND and "error" in reply.fields:
        return UNKNOWN
    state = _OF_JOBS.get(str(reply.fields.get("status")))
    if reply.status != _OK or state is None:
        raise _invalid_response(reply)
    created_ms = whole_number(reply.fields.get("create_time")) or 0
    seen = _status_of(state, reply.fields.get("outputs"), reply.fields.get("execution_status"))
    place = await _place_in_jobs(client, prompt_id) if state is PromptState.PENDING else None
    return replace(seen, place=place, created_ms=created_ms, repairs=reply.repairs)


async def _place_in_jobs(client: ComfyClient, prompt_id: str) -> tuple[int, int] | None:
    reply = await client.get("/api/jobs", {"status": "pending,in_progress"}, max_bytes=LISTS_MAX_BYTES)
    jobs = reply.fields.get("jobs")
    if not isinstance(jobs, list):
        return None
    numbers = {
        str(job.get("id")): job.get("priority")
        for job in jobs
        if isinstance(job, Mapping) and isinstance(job.get("priority"), int | float)
    }
    return _queue_place(prompt_id, numbers)


async def _in_history(client: ComfyClient, prompt_id: str) -> PromptStatus | None:
    reply = await client.get(f"/history/{prompt_id}", max_bytes=LISTS_MAX_BYTES)
    if reply.status != _OK or not isinstance(reply.body, Mapping):
        raise _invalid_response(reply)
    entry = reply.fields.get(prompt_id)
    if not isinstance(entry, Mapping):
        return None  # 200 and `{}`, whether the prompt waits, runs or is unknown
    status = entry.get("status")
    state = _OF_HISTORY.get(str(status.get("status_str") if isinstance(status, Mapping) else None))
    if state is None:
        raise _invalid_response(reply)
    seen = _status_of(state, entry.get("outputs"), status)
    item = _item(entry.get("prompt"))
    return replace(seen, graph=item.graph, created_ms=item.created_ms, repairs=reply.repairs)


async def _in_queue(client: ComfyClient, prompt_id: str) -> PromptStatus | None:
    reply = await client.get("/queue", max_bytes=LISTS_MAX_BYTES)
    running, pending = reply.fields.get("queue_running"), reply.fields.get("queue_pending")
    if not isinstance(running, list) or not isinstance(pending, list):
        raise _invalid_response(reply)
    items = [*map(_item, running), *map(_item, pending)]
    mine = next((at for at, item in enumerate(items) if item.prompt_id == prompt_id), None)
    if mine is None:
        return None
    item = items[mine]
    if mine < len(running):
        return PromptStatus(PromptState.RUNNING, graph=item.graph, created_ms=item.created_ms)
    waiting = {each.prompt_id: each.number for each in items[len(running) :]}
    at, of = _queue_place(prompt_id, waiting) or (1, 1)
    place = (at + len(running), of + len(running))
    return PromptStatus(PromptState.PENDING, graph=item.graph, place=place, created_ms=item.created_ms)


@dataclass(frozen=True, slots=True)
class _Item:
    """`[number, prompt id, graph, extra data, outputs]`."""

    number: int = 0
    prompt_id: str = ""
    graph: Any = None
    created_ms: int = 0


def _item(value: Any) -> _Item:
    if not isinstance(value, list) or len(value) < 3:
        return _Item()
    extra = value[3] if len(value) > 3 else None
    created_ms = whole_number(extra.get("create_time")) if isinstance(extra, Mapping) else None
    return _Item(whole_number(value[0]) or 0, str(value[1]), value[2], created_ms or 0)


def whole_number(value: Any) -> int | None:
    """Return the integer part of an untrusted number; None for NaN, Infinity and other values."""
    return int(value) if isinstance(value, int | float) and -_NUMBERS_END < value < _NUMBERS_END else None


def _status_of(state: PromptState, outputs: Any, status: Any) -> PromptStatus:
    messages: dict[str, Mapping[str, Any]] = {}
    listed = status.get("messages") if isinstance(status, Mapping) else None
    for message in listed if isinstance(listed, Sequence) and not isinstance(listed, str) else ():
        if isinstance(message, list) and len(message) == 2 and isinstance(message[1], Mapping):
            messages[str(message[0])] = message[1]
    # The history shows an interrupted prompt as `error`; only this message distinguishes it.
    if state is PromptState.FAILED and "execution_interrupted" in messages:
        state = PromptState.CANCELLED
    return PromptStatus(state, outputs if isinstance(outputs, Mapping) else {}, messages)


def _queue_place(prompt_id: str, numbers: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return its place, where lower numbers come first; None when it is not in the queue."""
    mine = numbers.get(prompt_id)
    if mine is None:
        return None
    return 1 + sum(number < mine for number in numbers.values()), len(numbers)


def _invalid_response(reply: Reply) -> NoReply:
    return NoReply(f"it sent an invalid response with status {reply.status}")
