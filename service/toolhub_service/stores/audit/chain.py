"""The hash chain of one writer: each event is sealed together with the seal of the one before.

The tag is HMAC-SHA256 over previous tag, writer, sequence, key id and the canonical event (orjson: fields in the order
of `Event`, attributes and labels sorted, no white space). An edit, a deletion, a swap or an insertion breaks the tag at
that very sequence, and nobody without the key can repair it. A chain alone cannot show that its tail was cut;
checkpoints do.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec.structs import asdict, replace

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor

# The keys that seal the audit log: 32 random bytes each, in one file that only the hub may read.
#
# A line is `<key id> <hex>`; the last line signs, the others verify what they once signed. A key id is the beginning of
# the key's own SHA-256, so that a mixed-up file is noticed. Two keys are derived from each (HMAC as a PRF, RFC 5869),
# one for the chain and one for checkpoints: a checkpoint can never pass for an event.

KEY_BYTES: Final = 32
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class Mac:
    """HMAC-SHA256 (RFC 2104) with the key's two blocks hashed once, which halves the cost of a short message."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def hex(self, message: bytes) -> str:
        """The tag, 64 hex digits."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()

    def fits(self, message: bytes, tag: str) -> bool:
        """Whether the tag belongs to the message; compared in constant time."""
        return hmac.compare_digest(self.hex(message).encode(), tag.encode("utf-8", "replace"))


class Keyring:
    """Keys by id, the last one active. Immutable: `rotate` returns a new one."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise HubFailure(StartReason.AUDIT_KEY_INVALID, "The audit key file holds no key.")
        self.active_id = key_id(keys[-1])
        self._chain = {key_id(key): Mac(_derived(key, b"toolhub audit chain 1")) for key in keys}
        self._checkpoint = {key_id(key): Mac(_derived(key, b"toolhub audit checkpoint 1")) for key in keys}

    def chain(self, of: str = "") -> Mac | None:
        """Return the MAC that seals events, of the active key when `key_id` is None; None when the key is unknown."""
        return self._chain.get(of or self.active_id)

    def checkpoint(self, of: str = "") -> Mac | None:
        """The MAC that seals checkpoints."""
        return self._checkpoint.get(of or self.active_id)


def key_id(key: bytes) -> str:
    return hashlib.sha256(b"toolhub audit key id" + key).hexdigest()[:12]


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, purpose, "sha256")


def open_keyring(path: Path, *, create: bool) -> Keyring:
    """Read the key file; on first use, and only when `create`, make it.

    Raises HubFailure AUDIT_KEY_MISSING, AUDIT_KEY_EXPOSED (others may read it) or AUDIT_KEY_INVALID.
    """
    if not path.exists():
        if not create:
            message = (
                f"The audit key {path} is missing, yet events exist that it sealed. Put it back, or move them away."
            )
            raise HubFailure(StartReason.AUDIT_KEY_MISSING, message)
        _write(path, [secrets.token_bytes(KEY_BYTES)], replace=False)
    return Keyring(_read(path))


def rotate(path: Path) -> Keyring:
    """Add a key, which signs from now on; the old ones stay to verify what they signed."""
    _write(path, [*_read(path), secrets.token_bytes(KEY_BYTES)], replace=True)
    return Keyring(_read(path))


def _read(path: Path) -> list[bytes]:
    if path.stat().st_mode & 0o077:
        message = (
            f"The audit key {path} can be read by others. Set its mode to 600, then run `toolhub audit rotate-key`."
        )
        raise HubFailure(StartReason.AUDIT_KEY_EXPOSED, message)
    keys: list[bytes] = []
    for line in path.read_text("ascii", "replace").splitlines():
        name, _, digits = line.partition(" ")
        try:
            key = bytes.fromhex(digits)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES or name != key_id(key):
            message = f"The audit key file {path} is damaged: each line must be `<key id> <64 hex digits>`."
            raise HubFailure(StartReason.AUDIT_KEY_INVALID, message)
        keys.append(key)
    return keys


def _write(path: Path, keys: Sequence[bytes], *, replace: bool) -> None:
    """Write the file whole or not at all; when several workers make the first key at once, one of them wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.writelines(f"{key_id(key)} {key.hex()}\n" for key in keys)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(name).replace(path)
        else:
            with suppress(FileExistsError):  # another worker was first: use its key
                os.link(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new or renamed entry of the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


GENESIS: Final = "0" * 64
SUMMARY_BYTES: Final = 1024
LABELS_CHARS: Final = 4096
"""Total length of an event's labels, names included."""
_CUT: Final = "…"
_MAPPINGS: Final = ("attributes", "labels")
_TEXTS: Final = tuple(n for n in Event.__struct_fields__ if n not in {"type", "at_unix_ms", "duration_us", *_MAPPINGS})
_SUMMARIES: Final = ("args_summary", "result_summary")
# Fields of later versions are left out when empty, so that an older event is serialised as it was when it was sealed.
_LATER: Final = Event.__struct_fields__[Event.__struct_fields__.index("attributes") + 1 :]


class Chain:
    """The end of one writer's chain. It only adds events, and knows of no storage."""

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
    """Return the bytes that the tag covers.

    Only the body may hold a line feed, and it comes last: no two events share them.
    """
    return f"{previous}\n{writer}\n{sequence}\n{key_id}\n".encode("utf-8", "surrogateescape") + body


def canonical(event: Event) -> bytes:
    """Return the event's canonical JSON. Raises TypeError when UTF-8 cannot encode its text; see `encodable`."""
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
    """Return the event of a canonical body."""
    data: dict[str, Any] = orjson.loads(body)
    return Event(**{**data, "type": EventType(data["type"])})


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
    texts: dict[str, Any] = {name: _mended(getattr(event, name)) for name in _TEXTS}
    for name in _MAPPINGS:
        texts[name] = {_mended(str(key)): _mended(str(value)) for key, value in getattr(event, name).items()}
    return replace(event, **texts)


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
