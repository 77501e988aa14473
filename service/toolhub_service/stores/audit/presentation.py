"""Events as the audit log stores them: without secrets, summaries and labels bounded, text encodable as UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from toolhub_service.domain.event import Event
from toolhub_service.guards.secrets import Redactor

SUMMARY_BYTES: Final = 1024
LABELS_CHARS: Final = 4096
"""Total length of an event's labels, names included."""
_CUT: Final = "…"
_MAPPINGS: Final = ("attributes", "labels")
_TEXTS: Final = tuple(n for n in Event.__struct_fields__ if n not in {"type", "at_unix_ms", "duration_us", *_MAPPINGS})
_SUMMARIES: Final = ("args_summary", "result_summary")


def are_clean(events: Iterable[Event], redactor: Redactor) -> bool:
    """Return whether no event shows any sign of a secret, by one search over all their text instead of one an event.

    A text that holds NUL is never clean: a store that cannot keep NUL removes it, and the rest may be such a sign.
    """
    text = "\n".join([_all_text(event) for event in events])
    return "\0" not in text and not redactor.suspects(text.encode("utf-8", "surrogatepass"))


def presentable(event: Event, redactor: Redactor, *, is_clean: bool = False) -> Event:
    """Return the event without secrets and with its summary cut; the same object when nothing had to change.

    Secrets are hidden before the cut, because half a secret would not be recognised. `is_clean`: it is known to hold
    none.
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
    """Return the arguments without the secrets that names, nesting and flags reveal, which text alone may not show."""
    try:
        return redactor.json_text(orjson.loads(summary))
    except ValueError:  # the arguments were cut short, or there are none
        return summary


def _all_text(event: Event) -> str:
    """Return every text that others have written, attributes by name, so that one search covers all.

    Digests are the hub's.
    """
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
    """Keep the first labels by name, and count the others under a name that no caller can choose."""
    kept: dict[str, str] = {}
    room = LABELS_CHARS
    for name, value in sorted(labels.items()):
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return {**kept, _CUT: f"{len(labels) - len(kept)} labels left out"}


def encodable(event: Event) -> Event:
    """Return the event with `?` for what UTF-8 cannot encode, so that no event is lost to one character."""
    texts: dict[str, Any] = {name: _encodable_text(getattr(event, name)) for name in _TEXTS}
    for name in _MAPPINGS:
        texts[name] = {
            _encodable_text(str(key)): _encodable_text(str(value)) for key, value in getattr(event, name).items()
        }
    return replace(event, **texts)


def _encodable_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
