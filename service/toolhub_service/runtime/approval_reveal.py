"""The arguments of open approvals as they were sent, for an approver who must read what a summary tells by its length.

They are kept by the process that asked, in memory alone and no longer than the approval is open: no store gets to hold
what a caller may have put into them. So a hub that was not asked, or was started since, has none until the same call
comes again. Known secret values are hidden when they are shown, by what the hub knows by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.hidden_characters import escaped
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads

REVEALED_MAX_BYTES: Final = 64 * 1_024
"""Of the canonical JSON of the arguments."""
_DEPTH_MAX: Final = 254
"""As canonical JSON: defaults may lie deeper than what a caller may send."""
_KEPT_MAX_BYTES: Final = 16 * 1_024 * 1_024
_ENTRY_BYTES: Final = 1_024
"""What an entry counts for besides its arguments."""


class _Kept(NamedTuple):
    args_json: bytes
    """Empty: larger than is kept."""
    expires_at_unix_ms: int

    @property
    def size_bytes(self) -> int:
        return len(self.args_json) + _ENTRY_BYTES


class OpenArguments:
    """Bounded: when they are too many, the principal with most of them loses its oldest, so that none can displace
    those of others."""

    def __init__(self, max_bytes: int = _KEPT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, dict[str, _Kept]] = {}
        """By principal and approval, in the order in which they came."""
        self._size_bytes: dict[str, int] = {}
        """By principal."""

    def keep(self, approval: Approval, args_json: bytes) -> None:
        """`args_json`: canonical JSON, whose digest is the binding's."""
        principal, approval_id = approval.binding.principal, approval.approval_id
        mine = self._kept.setdefault(principal, {})
        if approval_id in mine:
            return
        fits = len(args_json) <= REVEALED_MAX_BYTES
        mine[approval_id] = kept = _Kept(args_json if fits else b"", approval.expires_at_unix_ms)
        self._size_bytes[principal] = self._size_bytes.get(principal, 0) + kept.size_bytes
        while sum(self._size_bytes.values()) > self._max_bytes:
            largest = max(self._size_bytes, key=self._size_bytes.__getitem__)
            self._remove(largest, next(iter(self._kept[largest])))

    def of(self, approval: Approval) -> bytes | None:
        """None when they are not here, empty when they are larger than is kept."""
        kept = self._kept.get(approval.binding.principal, {}).get(approval.approval_id)
        return None if kept is None else kept.args_json

    def drop(self, approval: Approval) -> None:
        self._remove(approval.binding.principal, approval.approval_id)

    def lapse(self, now_unix_ms: int) -> None:
        """Drop those of approvals whose time is over."""
        over = [
            (principal, approval_id)
            for principal, mine in self._kept.items()
            for approval_id, kept in mine.items()
            if now_unix_ms >= kept.expires_at_unix_ms
        ]
        for principal, approval_id in over:
            self._remove(principal, approval_id)

    def _remove(self, principal: str, approval_id: str) -> None:
        mine = self._kept.get(principal, {})
        if (kept := mine.pop(approval_id, None)) is None:
            return
        self._size_bytes[principal] -= kept.size_bytes
        if not mine:
            del self._kept[principal], self._size_bytes[principal]


def reveal_arguments(args_json: bytes, redactor: Redactor) -> bytes:
    """JSON of all of them: known secret values are told by their length, characters that show nothing are escaped."""
    return escaped(dumps(_revealed(loads(args_json, max_depth=_DEPTH_MAX), redactor)).decode()).encode()


def _revealed(value: JsonValue, redactor: Redactor) -> JsonValue:
    if isinstance(value, str):
        return redactor.known(value)
    if isinstance(value, Mapping):
        return _revealed_members(value, redactor)
    if isinstance(value, Sequence):
        return [_revealed(item, redactor) for item in value]
    if value is None or isinstance(value, bool):
        return value
    digits = dumps(value).decode()
    told = redactor.known(digits)
    return value if told == digits else told


def _revealed_members(value: Mapping[str, JsonValue], redactor: Redactor) -> JsonValue:
    """Two names that read the same with their secrets hidden stay two."""
    shown: dict[str, JsonValue] = {}
    for name, item in value.items():
        told = redactor.known(name)
        while told in shown:
            told += "'"
        shown[told] = _revealed(item, redactor)
    return shown
