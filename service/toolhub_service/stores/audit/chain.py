"""The hash chain of one writer: each event is sealed together with the seal of the one before.

The tag is HMAC-SHA256 over previous tag, writer, sequence, key id and the canonical event (orjson: fields in the order
of `Event`, attributes and labels sorted, no white space). An edit, a deletion, a swap or an insertion breaks the tag at
that very sequence, and nobody without the key can mend it; what a chain alone cannot show, a cut tail, checkpoints
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import asdict, replace

from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.keyring import Keyring, Mac

GENESIS: Final = "0" * 64
SUMMARY_BYTES: Final = 1024
LABELS_CHARS: Final = 4096
"""Of all labels of an event, names included."""
_CUT: Final = "…"
_MAPPINGS: Final = ("attributes", "labels")
_TEXTS: Final = tuple(n for n in Event.__struct_fields__ if n not in {"type", "at_unix_ms", "duration_us", *_MAPPINGS})
_SUMMARIES: Final = ("args_summary", "result_summary")
_LATER: Final = Event.__struct_fields__[Event.__struct_fields__.index("attributes") + 1 :]
"""Fields of later versions, left out where they are empty: an event of before them is spelt as when it was sealed."""


class Chain:
    """Where one writer stands. Adding is all it does; it knows of no storage."""

    __slots__ = ("_mac", "head", "key_id", "sequence", "writer")

    def __init__(self, writer: str, keyring: Keyring) -> None:
        mac = keyring.chain()
        assert mac is not None
        self._mac: Mac = mac
        self.writer = writer
        self.key_id = keyring.active_id
        self.sequence = 0
        self.head = GENESIS

    def add(self, body: bytes) -> tuple[int, str, str]:
        """Seal the next canonical event: its sequence, the tag before it, and its tag."""
        sequence, previous = self.sequence + 1, self.head
        tag = self._mac.hex(sealed(previous, self.writer, sequence, self.key_id, body))
        self.sequence, self.head = sequence, tag
        return sequence, previous, tag


def sealed(previous: str, writer: str, sequence: int, key_id: str, body: bytes) -> bytes:
    """What the tag is taken over. Only the body may hold a line feed, and it comes last: no two events share it."""
    return f"{previous}\n{writer}\n{sequence}\n{key_id}\n".encode("utf-8", "surrogateescape") + body


def canonical(event: Event) -> bytes:
    """The event's one spelling. Raises TypeError when UTF-8 cannot carry its text; see `encodable`."""
    body = asdict(event)
    for name in _LATER:
        if not body[name]:
            del body[name]
    if len(event.attributes) > 1:
        body["attributes"] = dict(sorted(event.attributes.items()))
    if len(event.labels) > 1:
        body["labels"] = dict(sorted(event.labels.items()))
    return orjson.dumps(body, default=dict)


def parse(body: str | bytes) -> Event:
    """The event of a canonical body."""
    data: dict[str, Any] = orjson.loads(body)
    return Event(**{**data, "type": EventType(data["type"])})


def are_clean(events: Iterable[Event], redactor: Redactor) -> bool:
    """Whether none of them shows any sign of a secret: one search over all of their text, instead of one an event.

    A text that holds NUL is never clean: a store that cannot keep NUL takes it out, and what is left may be a sign.
    """
    text = "\n".join([_all_text(event) for event in events])
    return "\0" not in text and not redactor.suspects(text.encode("utf-8", "surrogatepass"))


def presentable(event: Event, redactor: Redactor, *, is_clean: bool = False) -> Event:
    """The event without secrets and with its summary cut; the very same object when nothing had to change.

    Hidden first and cut afterwards: half a secret would no longer be recognised. `is_clean`: known to hold none.
    """
    if not is_clean and redactor.suspects(_all_text(event).encode("utf-8", "surrogatepass")):
        hidden: dict[str, Any] = {name: redactor.text(getattr(event, name)) for name in _TEXTS}
        for name in _SUMMARIES:
            hidden[name] = redactor.text(_by_name(getattr(event, name), redactor))
        for name in _MAPPINGS:
            hidden[name] = redactor.value(dict(getattr(event, name)))
        event = replace(event, **hidden)
    if len(event.args_summary) * 4 > SUMMARY_BYTES:
        event = replace(event, args_summary=_cut(event.args_summary))
    if len(event.result_summary) * 4 > SUMMARY_BYTES:
        event = replace(event, result_summary=_cut(event.result_summary))
    if event.labels and _chars(event.labels) > LABELS_CHARS:
        event = replace(event, labels=_cut_labels(event.labels))
    return event


def _by_name(summary: str, redactor: Redactor) -> str:
    """Arguments without what their names, nesting and flags announce as a secret, which text alone may not show."""
    try:
        return redactor.json_text(orjson.loads(summary))
    except ValueError:  # cut short, or none
        return summary


def _all_text(event: Event) -> str:
    """Every text that others have written, attributes by name: one search judges them all. Digests are the hub's."""
    e = event
    text = (
        f"{e.principal}\n{e.tool}\n{e.call_id}\n{e.request_id}\n{e.args_summary}\n{e.purpose}\n{e.rule_id}\n{e.outcome}"
        f"\n{e.user_id}\n{e.agent_id}\n{e.task_id}\n{e.session_id}\n{e.result_summary}"
    )
    if e.attributes:
        text += "".join([f'\n"{name}":"{value}"' for name, value in e.attributes.items()])
    if e.labels:
        text += "".join([f'\n"{name}":"{value}"' for name, value in e.labels.items()])
    return text


def _cut(summary: str) -> str:
    data = summary.encode("utf-8", "replace")
    if len(data) <= SUMMARY_BYTES:
        return summary
    return data[: SUMMARY_BYTES - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def _chars(labels: Mapping[str, str]) -> int:
    return sum(map(len, labels)) + sum(map(len, labels.values()))


def _cut_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The first by name, and how many more there were under a name that no caller can choose."""
    kept: dict[str, str] = {}
    room = LABELS_CHARS
    for name, value in sorted(labels.items()):
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return {**kept, _CUT: f"{len(labels) - len(kept)} labels left out"}


def encodable(event: Event) -> Event:
    """The event with `?` for what UTF-8 cannot carry: an event is never lost to a character."""
    texts: dict[str, Any] = {name: _mended(getattr(event, name)) for name in _TEXTS}
    for name in _MAPPINGS:
        texts[name] = {_mended(str(key)): _mended(str(value)) for key, value in getattr(event, name).items()}
    return replace(event, **texts)


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
