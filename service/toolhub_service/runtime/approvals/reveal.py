"""The arguments of open approvals as they were sent, for an approver who must read what a summary shows only by length.

The process that asked keeps them, in memory only and while the approval is open: no store holds what a caller may have
put into them. So a hub that did not ask, or was restarted since, has none until the same call comes again. Known secret
values are hidden when the arguments are shown, by what the hub knows by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.foreign_text import escape_hidden
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.show_arguments import keep_distinct_names
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads

REVEALED_MAX_BYTES: Final = 64 * 1_024
"""Limit for the canonical JSON of the arguments."""
# Levels of canonical JSON: defaults may be nested deeper than what a caller may send.
_DEPTH_MAX: Final = 254
_KEPT_MAX_BYTES: Final = 16 * 1_024 * 1_024
# Bytes that an entry counts for besides its arguments.
_ENTRY_BYTES: Final = 1_024


class _Kept(NamedTuple):
    args_json: bytes
    """Arguments of one approval; empty when they are too large to keep."""
    expires_at_unix_ms: int

    @property
    def size_bytes(self) -> int:
        return len(self.args_json) + _ENTRY_BYTES


class OpenArguments:
    """The kept arguments, bounded: when there are too many, the principal with most of them loses its oldest, so that
    none can displace those of others."""

    def __init__(self, max_bytes: int = _KEPT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        # By principal and approval, in order of arrival.
        self._kept: dict[str, dict[str, _Kept]] = {}
        # Bytes by principal.
        self._size_bytes: dict[str, int] = {}

    def keep(self, approval: Approval, args_json: bytes) -> None:
        """Keep the arguments; `args_json` is the canonical JSON whose digest is in the binding."""
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
        """Return the arguments: None when they are not here, empty when they are too large to keep."""
        kept = self._kept.get(approval.binding.principal, {}).get(approval.approval_id)
        return None if kept is None else kept.args_json

    def drop(self, approval: Approval) -> None:
        self._remove(approval.binding.principal, approval.approval_id)

    def expire_due(self, now_unix_ms: int) -> None:
        """Drop the arguments of approvals whose time has passed."""
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
    """Return JSON of all arguments: known secret values are replaced by their length, invisible characters are
    escaped."""
    return escape_hidden(dumps(hide_known_secrets(loads(args_json, max_depth=_DEPTH_MAX), redactor)).decode()).encode()


def hide_known_secrets(value: JsonValue, redactor: Redactor) -> JsonValue:
    if isinstance(value, str):
        return redactor.hide_known_values(value)
    if isinstance(value, Mapping):
        return keep_distinct_names(
            (redactor.hide_known_values(name), hide_known_secrets(item, redactor)) for name, item in value.items()
        )
    if isinstance(value, Sequence):
        return [hide_known_secrets(item, redactor) for item in value]
    if value is None or isinstance(value, bool):
        return value
    digits = dumps(value).decode()
    shown = redactor.hide_known_values(digits)
    return value if shown == digits else shown
